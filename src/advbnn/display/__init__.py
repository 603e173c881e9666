"""What a person sees of a computation: its progress, and its results in a notebook."""
