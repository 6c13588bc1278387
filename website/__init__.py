"""The documentation site (`make docs`): the pages of `docs/`, an API reference made from docstrings, and search.

stage       copies the pages to a folder of their own, and makes links and a table of contents for the site
docstrings  reads a docstring: what it says, arguments, example
api         pages made from docstrings: one for each verb and reader, one for each facade
conf        the settings of Sphinx
"""
