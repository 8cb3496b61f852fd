-- Who may include whom.  Arrows point one way: bindings -> core <- kernels, and kernels know the
-- core by few headers.
local source = require "host.tools.lint.source"

-- Rooms, the narrowest first.  `may`: patterns of the files that a file of the room may include;
-- `not_system`: <headers> it may not.
local ROOMS = {
  {
    room = "^kernels/cpu/",
    may = { "^kernels/cpu/", "^kernels/[^/]+$" },
    backend = true,
  },
  {
    room = "^kernels/cuda/",
    may = { "^kernels/cuda/", "^kernels/[^/]+$" },
    backend = true,
  },
  {
    room = "^kernels/",
    may = { "^kernels/[^/]+$" },
    backend = true,
  },
  {
    room = "^host/core/",
    may = { "^host/core/", "^host/[^/]+%.h$" },
    not_system = { "^lua", "^lauxlib", "^cuda", "^dnnl", "^nccl" },
    why = "the core knows the public headers in host/ and its own: neither Lua nor a backend",
  },
  {
    room = "^host/text/",
    may = { "^host/text/", "^host/[^/]+%.h$" },
    not_system = { "^lua", "^lauxlib" },
    why = "tokenizers know the public headers in host/ and their own: neither Lua nor the core's insides",
  },
  {
    room = "^host/",
    may = { "^host/" },
    why = "the host reaches a backend through its vtable",
  },
}

-- What a backend includes of the host.
local OF_BACKENDS = {
  "^host/plugin%.h$", "^host/capture%.h$", "^host/dist%.h$", "^host/half%.h$", "^host/float8%.h$",
  "^host/fn%.h$",
  "%.def$", "^host/core/ops/[%w_]+%.h$", -- the tables, and what the kernels and the rule of one family share
}
local BACKENDS_WHY = "a backend includes plugin.h, capture.h, dist.h, .def tables, headers of a family " ..
  "of ops and its own room"

local FOLDERS = { "host/", "kernels/", "kernels/cuda/" } -- what the compiler is given with -I

local function simple(path)
  local before
  repeat
    before = path
    path = path:gsub("[^/]+/%.%./", "", 1)
  until path == before
  return path
end

-- The file that `#include "name"` in `path` means; nil when it is none of ours.
local function included(tree, path, name)
  local beside = simple(path:match("^(.*/)[^/]*$") .. name)
  if tree.has[beside] then return beside end
  for _, folder in ipairs(FOLDERS) do
    if tree.has[folder .. name] then return folder .. name end
  end
end

local function any(patterns, text)
  for _, pattern in ipairs(patterns or {}) do
    if text:find(pattern) then return true end
  end
  return false
end

local function room_of(path)
  for _, room in ipairs(ROOMS) do
    if path:find(room.room) then return room end
  end
end

-- Calls fn(path, line, name, target) for each #include; target: a path, or nil with <name>.
local function each_include(tree, fn)
  for path in tree:each({ c = true }, { "host/", "kernels/" }) do
    for number, line in source.lines(tree:apart(path).code) do
      local mark, name = line:match('^%s*#%s*include%s*([<"])([^">]+)')
      if name then fn(path, number, name, mark == '"' and included(tree, path, name) or nil, mark) end
    end
  end
end

local M = {}

--- Kernels and the core include what their room allows.
function M.layers(tree, report)
  each_include(tree, function(path, number, name, target, mark)
    local room = room_of(path)
    local ok = true
    if mark == "<" then ok = not any(room.not_system, name)
    elseif target then
      ok = any(room.may, target) or room.backend and any(OF_BACKENDS, target)
    end
    if not ok then
      report(path, number, ("includes %s; %s"):format(target or name, room.backend and BACKENDS_WHY
        or room.why))
    end
  end)
end

--- core/*.h is the core's own, and text/*.h the tokenizers'; only their tables (.def) are read
--- elsewhere.
function M.core_is_private(tree, report)
  each_include(tree, function(path, number, _, target)
    local room = target and (target:match "^(host/core/).*%.h$" or target:match "^(host/text/).*%.h$")
    if not room or path:sub(1, #room) == room then return end
    if path:find("^kernels/") and target:find("^host/core/ops/[%w_]+%.h$") then return end
    report(path, number, ("includes %s, which is %s own; public headers are in host/"):format(target,
      room == "host/core/" and "the core's" or "the tokenizers'"))
  end)
end

return M
