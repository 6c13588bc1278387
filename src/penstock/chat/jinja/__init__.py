"""A sandbox for chat templates that may be hostile: `sandbox.render` is the only way in.

    sandbox   the environment: what a template may call, and `render`
    syntax    guards written into the parsed template wherever it can loop or grow
    bounds    the filters, operators and methods of templates, each bounded before it computes
    meter     steps, bytes and processor time of one rendering

What it leans on in Jinja, beyond the documented sandbox. Check these before raising the upper bound of `jinja2` in
pyproject.toml (`hf` extra), and run tests/hostile/test_templates.py:

    Environment.call passes `_loop_vars` and `_block_vars` to what a template calls     sandbox
    Undefined has `_undefined_name`, `_undefined_obj`, `_fail_with_undefined_error`     sandbox
    Environment.concat and Template.root_render_func are called while rendering         sandbox
    node classes and their fields; Environment.compile accepts a changed tree           syntax
"""
