"""Settings of Sphinx. Pages are Markdown (MyST); the theme is Furo, which requests nothing from other servers."""

from __future__ import annotations

from penstock import __version__

project = "Penstock"
author = "The Penstock authors"
copyright = "The Penstock authors"  # noqa: A001
release = __version__
version = __version__

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist"]
exclude_patterns = ["llms.txt"]
html_extra_path: list[str] = []

html_theme = "furo"
html_title = f"Penstock {__version__}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navigation_with_keys": True,
    "light_css_variables": {"color-brand-primary": "#0b5c8c", "color-brand-content": "#0b5c8c"},
    "dark_css_variables": {"color-brand-primary": "#6fc0f0", "color-brand-content": "#6fc0f0"},
}
pygments_style = "friendly"
pygments_dark_style = "github-dark"

python_maximum_signature_line_length = 88
python_display_short_literal_types = True
toc_object_entries = False
add_module_names = False
