--- `log_with = "csv"`: one row for each call of log, in <logging_dir>/<project>/metrics.csv (RFC
--- 4180). An existing file is appended to.
---
--- The columns are `step`, `time` (seconds since 1970) and the names of the values; a map gives one
--- column for each entry, `name/entry`. A new name rewrites the file with one more column, which is
--- empty in earlier rows. Settings go to config.json beside it, and each table to a file of its
--- own.
local builtin = require "accelerate.tracking.builtin"
local file = require "accelerate.tracking.file"
local fs = require "accelerate.utils.fs"
local json = require "accelerate.utils.json"
local ordered = require "accelerate.utils.ordered"
local values = require "accelerate.tracking.values"

local Class

local function text_of(value)
  if type(value) == "number" then
    if value ~= value then return "nan" end
    if value == math.huge then return "inf" end
    if value == -math.huge then return "-inf" end
    return (json.encode(value))
  end
  local text = value == nil and "" or tostring(value)
  if text:find('[",\r\n]') then text = '"' .. text:gsub('"', '""') .. '"' end
  return text
end

local function row_of(list, n)
  local parts = {}
  for i = 1, n or #list do parts[i] = text_of(list[i]) end
  return table.concat(parts, ",") .. "\n"
end

--- Returns the names in the first row of an existing file.
local function names_in(path)
  local head = fs.exists(path) and fs.read(path)
  if not head or head == "" then return nil end
  local names, at = {}, 1
  while true do
    local quoted, after = head:match('^"(.-)"()[,\r\n]', at)
    while quoted and select(2, quoted:gsub('"', "")) % 2 == 1 do  -- the quote was the first of a pair
      local more, stop = head:match('^(.-)"()[,\r\n]', after)
      if not more then return nil end
      quoted, after = quoted .. '"' .. more, stop
    end
    local plain, stop = head:match("^([^,\r\n]*)()", at)
    names[#names + 1] = quoted and quoted:gsub('""', '"') or plain
    at = quoted and after or stop
    if head:sub(at, at) ~= "," then return names end
    at = at + 1
  end
end

--- Adds columns to all rows, so that they are as long as the first one.
local function widen(self, fresh)
  local path, had = self._path, #self._names
  for _, name in ipairs(fresh) do
    self._names[#self._names + 1] = name
    self._at[name] = #self._names
  end
  local rest = ""
  if had > 0 then
    local whole, why = fs.read(path)
    if not whole then file.fail("%s", why) end
    local commas, quoted, out = (","):rep(#fresh), false, {}
    for line in whole:gmatch("[^\n]*\n") do
      -- a text with a line break continues on the next line
      if select(2, line:gsub('"', "")) % 2 == 1 then quoted = not quoted end
      out[#out + 1] = quoted and line or line:sub(1, -2) .. commas .. "\n"
    end
    local first, open = 0, false
    repeat
      first = first + 1
      if select(2, (out[first] or ""):gsub('"', "")) % 2 == 1 then open = not open end
    until not open
    rest = table.concat(out, "", first + 1)
  end
  if self.tracker then self.tracker:close() end
  file.save(path, row_of(self._names) .. rest)
  self.tracker = file.open(path)
end

Class = builtin.class("CSVTracker", { name = "csv", requires_logging_directory = true }, {
  init = { file_name = { "string", default = "metrics.csv" } },
  log_table = builtin.TABLE,
}, {
  start = function(self)
    self.logging_dir = self.logging_dir_param .. "/" .. self.run_name
    file.make_dirs(self.logging_dir)
    self._path = self.logging_dir .. "/" .. self.init_kwargs.file_name
    self._names, self._at = names_in(self._path) or {}, {}
    for i, name in ipairs(self._names) do self._at[name] = i end
    if #self._names > 0 then self.tracker = file.open(self._path) else widen(self, { "step", "time" }) end
  end,
  store_init_configuration = function(self, config)
    file.save(self.logging_dir .. "/config.json",
      values.json(builtin.settings("CSVTracker:store_init_configuration", config)) .. "\n")
  end,
  log = function(self, given, opts)
    opts = Class.options_of("log", opts)
    local row, fresh = { step = opts.step, time = file.now() }, {}
    for _, entry in ipairs(values.read("csv", builtin.values("CSVTracker:log", given))) do
      local name, value = entry[1], entry[2]
      if type(value) == "table" then
        for _, key in ipairs(ordered.keys(value)) do row[name .. "/" .. key] = value[key] end
      else
        row[name] = value
      end
    end
    local names = ordered.keys(row)
    for _, name in ipairs(names) do
      if not self._at[name] then fresh[#fresh + 1] = name end
    end
    if #fresh > 0 then widen(self, fresh) end
    local cells = {}
    for _, name in ipairs(names) do cells[self._at[name]] = row[name] end
    self.tracker:write(row_of(cells, #self._names))
  end,
  log_table = function(self, name, opts)
    opts = Class.options_of("log_table", opts)
    local columns, data = builtin.table_of("CSVTracker:log_table", name, opts)
    file.save(("%s/%s%s.csv"):format(self.logging_dir, file.safe_name(name), opts.step and "_" .. opts.step
      or ""), Class.text(columns, data))
  end,
  finish = function(self)
    if self.tracker then self.tracker:close() end
  end,
})

--- Returns a table as CSV text.
---@param columns string[]
---@param data any[][]
---@return string
function Class.text(columns, data)
  local rows = { row_of(columns) }
  for i, row in ipairs(data) do
    local cells = {}
    for j = 1, #columns do cells[j] = values.settings(row[j]) end
    rows[i + 1] = row_of(cells, #columns)
  end
  return table.concat(rows)
end

return Class
