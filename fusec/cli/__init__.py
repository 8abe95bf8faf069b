"""The `fusec` command's parts: one module a subcommand, `parser` to choose between them."""
