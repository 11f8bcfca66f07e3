"""Tasks in parts: expensive submodules are tasks of their own, and are put together again."""
