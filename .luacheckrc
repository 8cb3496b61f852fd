std = "luajit"
read_globals = { "rawlen", table = { fields = { "pack", "unpack" } } } -- of Lua 5.2, which our LuaJIT has
max_line_length = false
unused_args = false
ignore = {
  "432/self", -- self of an inner function
  "581", "582", -- `not (x > y)` is not `x <= y` where NaN may come
}
files["spec"] = { std = "luajit+busted" }
