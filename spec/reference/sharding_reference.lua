-- Reads sharding_reference.txt: what Accelerate does, written by gen_sharding_reference.py.
local M = {}

local here = debug.getinfo(1, "S").source:match("^@(.*)sharding_reference%.lua$")

local function numbers(text)
  local list = {}
  for word in text:gmatch("%d+") do list[#list + 1] = tonumber(word) end
  return list
end

--- Text of a list of batches: "0,1,2 3,4,5".
function M.text(batches)
  local parts = {}
  for i, batch in ipairs(batches) do parts[i] = table.concat(batch, ",") end
  return table.concat(parts, " ")
end

--- All cases of a kind: { arguments = numbers, fields = the texts after it, name = the line's first
--- field }.
function M.cases(kind)
  local list = {}
  for line in io.lines(here .. "sharding_reference.txt") do
    if line:match("^" .. kind .. " ") then
      local fields = {}
      for field in (line .. "|"):gmatch("%s?(.-)%s?|") do fields[#fields + 1] = field end
      list[#list + 1] = { name = fields[1], arguments = numbers(fields[1]), fields = { unpack(fields, 2) } }
    end
  end
  return list
end

--- "a;b;c" -> { "a", "b", "c" }
function M.ranks(field)
  local list = {}
  for part in (field .. ";"):gmatch("(.-);") do list[#list + 1] = part end
  return list
end

return M
