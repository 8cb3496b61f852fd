--- JSON: accelerate.utils.json, and the rows of data.read_json.
local data = require "accelerate.data"
local json = require "accelerate.utils.json"

-- What has no form in Lua, or one of two: nulls are absent, and {} may be an empty list.
local function keeps_its_form(text) return not text:find("null", 1, true) end

local function write(value, path)
  local f = assert(io.open(path, "wb"))
  f:write(json.encode(value, #path % 2))
  f:close()
end

local function decode(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read("*a")
  f:close()
  local value, why = json.decode(text)
  if value == nil and why then
    if not (why:find("^json: .+ at line %d+$") or why == "json: text after the value") then
      error("the reason has no line: " .. why, 0)
    end
    error(("'%s': %s"):format(path, why), 0)
  end
  return value
end

return {
  ending = ".json",
  read = function(path, bytes)
    if bytes then
      local ok, why = pcall(data.read_json, path)
      if not ok and not why:find(path, 1, true) then error(why, 0) end
    end
    local value = decode(path)
    if bytes and not keeps_its_form(bytes) then return 0 end
    return value
  end,
  write = write,
}
