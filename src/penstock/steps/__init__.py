"""The verbs of a pipeline, one per file: a frozen definition and the node it builds."""
