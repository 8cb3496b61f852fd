std = "luajit"
max_line_length = 130
unused_args = false
ignore = { "212/self", "432/self" } -- a method that does not need its self; self of an inner function
files["spec"] = { std = "luajit+busted" }
files[".busted"] = { std = "luajit" }
