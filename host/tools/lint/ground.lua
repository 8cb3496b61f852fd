-- The ground floor of the core (memory, storages, types, shapes, statuses, the loading of backends)
-- and the inline functions of the headers that everybody includes call nothing above it.  Once
-- an inline function reached the tape, the calls that wait and the files, and so every file of the
-- core reached every other one.
local source = require "host.tools.lint.source"

local GROUND = {
  "^host/core/memory/", "^host/core/storage%.c$", "^host/core/dtype%.c$", "^host/core/shape%.c$",
  "^host/core/status%.c$", "^host/core/clock%.c$", "^host/core/device/backend%.c$",
}
local HEADERS = { ["host/ax.h"] = true, ["host/plugin.h"] = true, ["host/half.h"] = true,
  ["host/float8.h"] = true }

local function on_ground(path)
  if HEADERS[path] then return true end
  for _, pattern in ipairs(GROUND) do
    if path:find(pattern) then return true end
  end
  return false
end

-- Calls fn(path, number, line, kind) for each line of code: "define" begins a function of the file,
-- "declare" is a prototype, "body" another line; of a header, bodies are those of inline functions.
local function each_line(tree, files, fn)
  for _, path in ipairs(files) do
    local inside = not HEADERS[path]
    for number, line in source.lines(tree:apart(path).code) do
      local kind = "body"
      if line:find "^%a" then
        kind = line:find "%);%s*$" and "declare" or "define"
        if HEADERS[path] then
          inside = line:find "^static inline" ~= nil or line:find "^AX_FN" ~= nil
          if not inside then kind = "declare" end
        end
      end
      if inside or kind == "define" then fn(path, number, line, kind) end
    end
  end
end

--- The ground floor calls nothing above it.
return function(tree, report)
  local files, below = {}, {}
  for path in tree:each({ c = true }, { "host/" }) do
    if on_ground(path) then files[#files + 1] = path end
  end
  each_line(tree, files, function(_, _, line, kind)
    local name = kind == "define" and line:match "(ax_[%w_]+)%s*%("
    if name then below[name] = true end
  end)
  each_line(tree, files, function(path, number, line, kind)
    if kind == "declare" then return end
    local body = kind == "define" and (line:match "{(.*)$" or "") or line
    for name in body:gmatch "(ax_[%w_]+)%s*%(" do
      if not below[name] then
        report(path, number, ("calls %s, which is above the ground floor"):format(name))
      end
    end
  end)
end
