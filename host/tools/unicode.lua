-- Writes host/text/unicode_data.inc from the Unicode Character Database.
--
--   accel-run host/tools/unicode.lua [FOLDER] > host/text/unicode_data.inc
--
-- FOLDER is /usr/share/unicode, where Debian's package unicode-data has the files, unless given.
local folder = arg[1] or "/usr/share/unicode"
local LAST = 0x10FFFF

local CATEGORIES = { "Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Zs", "Zl",
  "Zp", "Cc", "Cf", "Co", "Cs", "Pd", "Ps", "Pe", "Pc", "Po", "Sm", "Sc", "Sk", "So", "Pi", "Pf" }
local BREAKS = { "CR", "LF", "Control", "Extend", "ZWJ", "Regional_Indicator", "Prepend", "SpacingMark",
  "L", "V", "T", "LV", "LVT", "Extended_Pictographic" }

local function numbered(names, first)
  local map = {}
  for i, name in ipairs(names) do map[name] = i - 1 + first end
  return map
end
local category_of, break_of = numbered(CATEGORIES, 0), numbered(BREAKS, 1)

-- Calls fn(first, last, property) for each line of a file of the database.
local function each_range(name, fn)
  for line in assert(io.open(folder .. "/" .. name)):lines() do
    local first, last, property = line:match("^(%x+)%.?%.?(%x*)%s*;%s*([%w_.]+)")
    if first then fn(tonumber(first, 16), tonumber(last ~= "" and last or first, 16), property) end
  end
end

local class, combining, lower, mapping, breaks = {}, {}, {}, {}, {}
for code = 0, LAST do class[code] = 0 end

local first_of_range
for line in assert(io.open(folder .. "/UnicodeData.txt")):lines() do
  local field = {}
  for text in (line .. ";"):gmatch("([^;]*);") do field[#field + 1] = text end
  local code = tonumber(field[1], 16)
  if field[2]:find("First>$") then first_of_range = code end
  local from = field[2]:find("Last>$") and first_of_range or code
  for c = from, code do class[c] = category_of[field[3]] end
  if field[4] ~= "0" then combining[code] = tonumber(field[4]) end
  if field[6] ~= "" then
    local list = { compat = field[6]:find("^<") ~= nil }
    for hex in field[6]:gsub("^<.->", ""):gmatch("%x+") do list[#list + 1] = tonumber(hex, 16) end
    mapping[code] = list
  end
  if field[14] ~= "" and code ~= 0x130 then lower[code] = tonumber(field[14], 16) - code end
end
local version
for line in assert(io.open(folder .. "/DerivedAge.txt")):lines() do
  version = version or line:match("DerivedAge%-([%d.]+)%.txt")
end
-- Bits 5 and 6: assigned up to Unicode 8.0, up to 9.0. Bit 7: alphabetic.
-- Mappings of characters of Unicode 12.0 and later are left out: Hugging Face's normalizers lack
-- them.
each_range("DerivedAge.txt", function(first, last, age)
  for c = first, last do
    if tonumber(age) >= 12 then mapping[c] = nil end
  end
  local bits = tonumber(age) <= 8 and 96 or tonumber(age) <= 9 and 64 or 0
  for c = first, last do class[c] = class[c] + bits end
end)
each_range("DerivedCoreProperties.txt", function(first, last, property)
  if property == "Alphabetic" then
    for c = first, last do class[c] = class[c] + 128 end
  end
end)
each_range("DerivedNormalizationProps.txt", function(first, last, property)
  if property == "Full_Composition_Exclusion" then
    for c = first, last do
      if mapping[c] then mapping[c].excluded = true end
    end
  end
end)
each_range("auxiliary/GraphemeBreakProperty.txt", function(first, last, property)
  for c = first, last do breaks[c] = assert(break_of[property], property) end
end)
each_range("emoji/emoji-data.txt", function(first, last, property)
  if property == "Extended_Pictographic" then
    for c = first, last do breaks[c] = break_of[property] end
  end
end)

-- ---- writing

local function array(type, name, comment, numbers)
  print(("\n/* %s */\nstatic const %s %s[] = {"):format(comment, type, name))
  local line = " "
  for _, number in ipairs(numbers) do
    local text = (" %d,"):format(number)
    if #line + #text > 108 then
      print(line)
      line = " "
    end
    line = line .. text
  end
  print(line .. "\n};")
end

local function runs(value_at)
  local list, before = {}, 0
  for c = 0, LAST do
    local value = value_at(c)
    if value ~= before then list[#list + 1] = c * 256 + value end
    before = value
  end
  return list
end

-- Runs of `map`'s entries that are alike: first, last, value. step 2: every second code point.
local function rows(map, steps)
  local list, c = {}, 0
  while c <= LAST do
    if map[c] then
      local step = steps and map[c + 1] ~= map[c] and map[c + 2] == map[c] and 2 or 1
      local last = c
      while map[last + step] == map[c] and (step == 1 or not map[last + 1]) do last = last + step end
      list[#list + 1] = c
      list[#list + 1] = last
      if steps then list[#list + 1] = step end
      list[#list + 1] = map[c]
      c = last + 1
    else
      c = c + 1
    end
  end
  return list
end

local stream = {}
for c = 0, LAST do
  local list = mapping[c]
  if list then
    stream[#stream + 1] = c * 256 + (list.compat and 128 or 0) + (list.excluded and 64 or 0) + #list
    for _, code in ipairs(list) do stream[#stream + 1] = code end
  end
end

print("/* unicode_data.inc: Unicode " .. version .. ", written by host/tools/unicode.lua. */")
print("/* clang-format off */\n")
print("enum {")
for _, name in ipairs(CATEGORIES) do print(("  UC_%s,"):format(name)) end
print("};")
array("uint32_t", "class_runs", "First code point << 8 | class, until the next entry.",
  runs(function(c) return class[c] end))
array("uint32_t", "break_runs", "First code point << 8 | grapheme break property.",
  runs(function(c) return breaks[c] or 0 end))
array("int32_t", "lower_rows", "First, last, step, distance to the lower-case letter.", rows(lower, true))
array("int32_t", "combining_rows", "First, last, canonical combining class.", rows(combining))
array("uint32_t", "mappings",
  "Code point << 8 | compatibility << 7 | not composed << 6 | length, then that many code points.", stream)
