"""The playground, a page in the browser: attack single images, and see what every weight sample says.

`trial` computes what is shown, `drawing` turns a drawing into an input, `card` writes HTML, `playground` is what the
page does, and `page` and `server` are the page itself, which needs Gradio. `digits/` holds the runs that are shown
without a run of one's own; `make play-networks` trains them.
"""
