-- Names of files in comments and pages: each is a file of the tree.

-- What is no file of ours: scripts of a user's in examples, files of other projects, and what the
-- build writes.
local FOREIGN = {
  ["op_attrs.h"] = true,
  ["train.lua"] = true, ["script.lua"] = true, ["model.lua"] = true, ["other.lua"] = true, ["llm.c"] = true,
  ["lua.c"] = true,
  ["lua.h"] = true,
}
local FOREIGN_FOLDERS = { "^build/", "^tensorflow/", "^src/", "^/" }

local NAME = "[%w_%./%-]*[%w_]%.%l+"
local EXTENSIONS = { c = true, h = true, inc = true, cu = true, cuh = true, cpp = true, def = true,
  lua = true }

-- The set of names by which a file may be called: its path and each end of it (io/csv.c, csv.c).
local function known(tree)
  local set = {}
  for _, path in ipairs(tree.files) do
    local name = path
    while name do
      set[name] = true
      name = name:match("^[^/]+/(.+)$")
    end
    -- what the code includes from elsewhere is a name, too
    if tree:kind(path) == "c" then
      for header in tree:text(path):gmatch("#%s*include%s*<([^>]+)>") do set[header] = true end
    end
  end
  return set
end

local function foreign(name)
  if FOREIGN[name] then return true end
  for _, pattern in ipairs(FOREIGN_FOLDERS) do
    if name:find(pattern) then return true end
  end
  return false
end

return function(tree, report)
  local names = known(tree)
  for path, kind in tree:each { c = true, def = true, lua = true, text = true, make = true, shell = true } do
    for _, comment in ipairs(tree:apart(path).comments) do
      local at = 1
      while true do
        local from, to = comment.text:find(NAME, at)
        if not from then break end
        local name = comment.text:sub(from, to)
        local extension, after = name:match("%.(%l+)$"), comment.text:sub(to + 1, to + 1)
        if EXTENSIONS[extension] and not after:find("[%w_%(]") and not names[name]
          and not names[name:gsub("^%./", "")] and not foreign(name) then
          if not (kind == "text" and comment.text:find("accel%-run")) then
            report(path, comment.line, ("%s: there is no such file"):format(name))
          end
        end
        at = to + 1
      end
    end
  end
end
