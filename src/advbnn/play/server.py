"""Serves the page of the playground, on this machine only unless asked for more."""

import errno
import socket
import threading
import warnings
from typing import Any

from advbnn.errors import ArgumentError, shown
from advbnn.play.page import check_gradio, text_of

_FONT = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif"]
_COLOURS = {
    # as in the report: light, dark
    "body_background_fill": ("#fdfcfa", "#15171a"),
    "block_background_fill": ("#ffffff", "#1d2024"),
    "background_fill_secondary": ("#f0ede6", "#2a2e33"),
    "body_text_color": ("#22262b", "#e6e4df"),
    "body_text_color_subdued": ("#5d6269", "#a2a6ac"),
    "block_info_text_color": ("#5d6269", "#a2a6ac"),
    "border_color_primary": ("#dddad2", "#34383e"),
    "slider_color": ("#1442a0", "#8ab8ff"),
    "checkbox_background_color_selected": ("#1442a0", "#3a6fc4"),
}
_EXTRA = ":root { --calm: #2c8254; --alarm: #a3360b } .dark { --calm: #74d6a4; --alarm: #ffab7d }\n"


def serve(
    page: Any, *, host: str = "127.0.0.1", port: int | None = None, share: bool = False, browser: bool = True
) -> None:
    """Serve a page until Ctrl-C; options as for `advbnn play`."""
    check_gradio()
    import gradio as gr

    colours = {name: light for name, (light, _) in _COLOURS.items()}
    colours["color_accent"] = "#4a80d4"  # the same in both modes
    colours |= {f"{name}_dark": dark for name, (_, dark) in _COLOURS.items()}
    _, address, public = page.launch(
        server_name=host,
        server_port=port,
        share=share,
        inbrowser=browser,
        prevent_thread_lock=True,
        quiet=True,
        show_error=True,
        ssr_mode=False,
        footer_links=[],
        theme=gr.themes.Base(font=_FONT, font_mono=["ui-monospace", "monospace"]).set(**colours),
        css=_EXTRA + text_of("page.css"),
    )
    if share and not public:
        warnings.warn("no public link could be made; the page is served on this machine only", stacklevel=2)
    print(f"The playground is at {public or address} (Ctrl-C ends it)", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        print("stopped")
    finally:
        page.close(verbose=False)


def check_free(host: str, port: int | None) -> None:
    """Refuses an address that the page cannot be served at; Gradio would only say that it finds no port."""
    try:
        if not host:  # which would mean every address
            raise ValueError
        with socket.create_server((host, port or 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            pass
    except (OSError, ValueError, TypeError) as error:  # the last two for names that cannot be encoded
        number = getattr(error, "errno", None)
        if number == errno.EADDRINUSE:
            raise ArgumentError(f"port={port} is in use; give another, or none for a free one") from None
        if number == errno.EACCES:
            raise ArgumentError(f"port={port} may not be used; give one above 1023") from None
        remedy = "give 127.0.0.1, or 0.0.0.0 for all"
        raise ArgumentError(f"host={shown(host)} is no address of this machine; {remedy}") from None
