"""HTML and SVG from data that is hostile: every text is escaped. Used by the report, the viewer and notebooks."""
