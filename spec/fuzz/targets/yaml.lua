--- YAML, as the files of settings have it.
local yaml = require "accelerate.utils.yaml"

-- What the writer says it does not write.
local BEYOND = { "^yaml: a table with list and map entries", "^yaml: tables inside each other",
  "^yaml: a key of more than 1000 letters" }

-- Whether a table occurs twice: the writer has no anchors.
local function shares(value, seen)
  if type(value) ~= "table" then return false end
  if seen[value] then return true end
  seen[value] = true
  for _, item in next, value do if shares(item, seen) then return true end end
  return false
end

local function text_of(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read("*a")
  f:close()
  return text
end

return {
  ending = ".yaml",
  read = function(path, bytes)
    if bytes then pcall(yaml.decode, bytes, path, true) end
    return (yaml.decode(text_of(path), path))
  end,
  write = function(value, path)
    if shares(value, {}) then return false end
    local ok, text = pcall(yaml.encode, value)
    if not ok then
      for _, pattern in ipairs(BEYOND) do if text:find(pattern) then return false end end
      error(text, 0)
    end
    local f = assert(io.open(path, "wb"))
    f:write(text)
    f:close()
  end,
}
