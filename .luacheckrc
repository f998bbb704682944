std = "luajit"
max_line_length = 120
exclude_files = { "build*", "tests/errors/syntax.lua" }
