"""Serves the page of the playground, on this machine only unless asked for more."""

import os
import threading
from typing import Any

from advbnn.errors import ArgumentError
from advbnn.play.page import gradio, text_of

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
}
_EXTRA = ":root { --calm: #2c8254; --alarm: #a3360b } .dark { --calm: #74d6a4; --alarm: #ffab7d }\n"


def serve(
    page: Any, *, host: str = "127.0.0.1", port: int | None = None, share: bool = False, browser: bool = True
) -> None:
    """Serve a page until Ctrl-C.

    Args:
        host: the address to listen at; `"0.0.0.0"` lets other machines connect.
        port: a free one from 7860 on if None.
        share: also open a public link, through servers of Gradio.
        browser: open the page in a browser.
    """
    gr = gradio()
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # also for what is not asked of the page itself
    colours = {f"{name}{end}": pair[i] for name, pair in _COLOURS.items() for i, end in enumerate(("", "_dark"))}
    try:
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
    except OSError as error:
        where = f"port {port}" if port is not None else "every port from 7860 on"
        raise ArgumentError(f"{where} at {host} cannot be used ({error}); give --port or --host another value") from None
    print(f"The playground is at {public or address} (Ctrl-C ends it)", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        print("stopped")
    finally:
        page.close(verbose=False)
