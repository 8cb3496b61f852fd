--- A progress bar on stderr, by default on the machine's main process only.
---
---   for x, y in utils.tqdm(loader, { desc = "epoch 1" }):iter() do ... end
---   for i, x, y in ipairs(utils.tqdm(loader)) do ... end
---   local bar = utils.tqdm(1000);  bar:update(1);  bar:set_postfix({ loss = loss });  bar:close()
---
--- What the library prints meanwhile (accelerator:print, loggers, notices, bar:write) stands above
--- the bars. A script's own print does not know of them: use accelerator:print.
---
--- On a terminal the line is drawn again at most ten times a second, as wide as the terminal is
--- then; bars within bars have lines of their own. In a notebook's cell one line is drawn again.
--- Elsewhere (a log file) a line is written every ten seconds, so that a log stays short.
local core = require "accelerate.core"
local enumerable = require "accelerate.utils.enumerable"
local ffi = require "ffi"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local properties = require "accelerate.utils.properties"
local terminal = require "accelerate.utils.terminal"

local fail = options.fail

ffi.cdef [[
struct accelerate_timespec { long sec; long nsec; };
int clock_gettime(int clock, struct accelerate_timespec *time);
]]

local CLOCK_MONOTONIC = 1
local CELLS, CELLS_LEAST, CELLS_MOST = 20, 4, 60
local EIGHTHS = { "▏", "▎", "▍", "▌", "▋", "▊", "▉" }

local time = ffi.new("struct accelerate_timespec")
local function now()
  ffi.C.clock_gettime(CLOCK_MONOTONIC, time)
  return tonumber(time.sec) + tonumber(time.nsec) * 1e-9
end

local function clock(seconds)
  if seconds ~= seconds or seconds > 359999 then return "?" end
  local s = math.floor(seconds + 0.5)
  if s >= 3600 then return ("%d:%02d:%02d"):format(s / 3600, s / 60 % 60, s % 60) end
  return ("%02d:%02d"):format(s / 60, s % 60)
end

local function cells(share, n)
  local filled = math.max(0, math.min(1, share)) * n
  local whole = math.floor(filled)
  if not terminal.has_utf8() then return ("#"):rep(whole) .. (" "):rep(n - whole) end
  local part = EIGHTHS[math.floor((filled - whole) * 8)] or (whole < n and " " or "")
  return ("█"):rep(whole) .. part .. (" "):rep(n - whole - 1)
end

local function value_text(value)
  if core.is_tensor(value) then value = value:item() end
  if type(value) == "number" then return ("%.4g"):format(value) end
  return tostring(value)
end

-- width: of the terminal; nil: there is none.
local function line_of(bar, at, width)
  local seconds = at - bar._start
  local rate = seconds > 0 and bar._n / seconds or 0
  local speed = rate >= 1 and ("%.1f%s/s"):format(rate, bar._unit) or rate > 0
    and ("%.2fs/%s"):format(1 / rate, bar._unit) or
    "?" .. bar._unit .. "/s"
  local notes = ""
  for _, key in ipairs(bar._keys) do notes = notes .. ", " .. key .. "=" .. value_text(bar._notes[key]) end
  if bar._text then notes = notes .. ", " .. bar._text end
  local head = bar._desc and bar._desc .. ": " or ""
  if not bar._total then
    return ("%s%d%s [%s, %s%s]"):format(head, bar._n, bar._unit, clock(seconds), speed, notes)
  end
  local share = bar._total > 0 and bar._n / bar._total or 1
  local left = rate > 0 and clock((bar._total - bar._n) / rate) or "?"
  local before = ("%s%3d%%|"):format(head, math.floor(share * 100))
  local after = ("| %d/%d [%s<%s, %s%s]"):format(bar._n, bar._total, clock(seconds), left, speed, notes)
  local room = width and math.min(width - terminal.width(before .. after), CELLS_MOST) or CELLS
  if room < CELLS_LEAST then return before:sub(1, -2) .. after:sub(2) end
  return before .. cells(share, room) .. after
end

--- Cuts to `width` columns, so that a long line does not wrap.
local function cut(text, width)
  local count = 0
  for at, character in text:gmatch("()([%z\1-\127\194-\244][\128-\191]*)") do
    count = count + terminal.width(character)
    if count > width then return text:sub(1, at - 1) end
  end
  return text
end

-- ---- drawing

-- The bars that are drawn and not closed, the outermost first.
local open = {}

local function place_of(bar)
  for i, other in ipairs(open) do
    if other == bar then return i - 1 end
  end
  return 0
end

local function line_for(bar, at)
  local width = terminal.columns(terminal.STDERR) - 1
  return cut(line_of(bar, at, width), width)
end

-- The line `place` lines below the outermost bar's.
local function draw_at(place, text)
  io.stderr:write(("\n"):rep(place), "\r", text, "\27[K", place > 0 and ("\27[%dA"):format(place) or "", "\r")
end

-- Takes all bars off the terminal while something else is written.
local function hide()
  for i = #open, 1, -1 do draw_at(i - 1, "") end
end

local function show()
  local at = now()
  for i, bar in ipairs(open) do draw_at(i - 1, line_for(bar, at)) end
  io.stderr:flush()
end

-- A cell of a notebook has one line that can be drawn again: the innermost bar's.
local function draw_in_notebook(bar, at, last)
  if open[#open] == bar or last then
    io.stderr:write("\r", line_for(bar, at), "\27[K", last and bar._leave and "\n" or last and "\r" or "")
  end
end

local function draw(bar, at)
  bar._drawn = at
  if terminal.notebook then draw_in_notebook(bar, at)
  elseif bar._terminal then draw_at(place_of(bar), line_for(bar, at))
  else io.stderr:write(line_of(bar, at) .. "\n") end
  io.stderr:flush()
end

-- A bar that stays takes the outermost one's line, and that one goes on below.
local function draw_last(bar, at)
  local place = place_of(bar)
  if terminal.notebook then draw_in_notebook(bar, at, true)
  elseif not bar._terminal then io.stderr:write(line_of(bar, at) .. "\n")
  elseif bar._leave then draw_at(0, line_for(bar, at)) io.stderr:write("\n")
  else draw_at(place, "") end
  for i = #open, 1, -1 do
    if open[i] == bar then table.remove(open, i) end
  end
  if bar._terminal and not terminal.notebook then
    for i, other in ipairs(open) do draw_at(i - 1, line_for(other, at)) end
    draw_at(#open, "")
  end
  io.stderr:flush()
end

local function check(method, name, value, entry)
  return options.value("tqdm: " .. method, name, value, entry)
end

local STEPS = { "number", default = 1 }
local TEXT = { "string", optional = true }
local function text_of(method, text)
  return check(method, "text", type(text) == "number" and tostring(text) or text, TEXT)
end

---@class accelerate.tqdm
---@field n number steps counted so far
---@field total number? steps that there will be; nil: unknown
---@field disable boolean whether nothing is drawn
local methods = {}

--- Counts `n` more steps and draws when it is time.
---@param n number? default 1
function methods:update(n)
  self._n = self._n + check("update", "n", n, STEPS)
  if self._off or self._closed then return end
  local at = now()
  if at - self._drawn >= self._interval then draw(self, at) end
end

--- Sets the text in front of the bar.
---@param text string|number|nil nil: none
function methods:set_description(text) self._desc = text_of("set_description", text) end

--- Sets a text shown after the rate.
---@param text string|number|nil nil: none
function methods:set_postfix_str(text)
  text = text_of("set_postfix_str", text)
  self._notes, self._keys, self._text = {}, {}, text ~= "" and text or nil
end

--- Draws the bar now.
function methods:refresh()
  if not (self._off or self._closed) then draw(self, now()) end
end

--- Sets values shown after the rate: `{ loss = loss }`. A tensor is read only when the line is
--- drawn.
---@param notes table<string, any>
function methods:set_postfix(notes)
  local kept, keys = {}, {}
  for key, value in pairs(check("set_postfix", "notes", notes, { "table" })) do
    keys[#keys + 1] = key
    kept[key] = core.is_tensor(value) and value:detach() or value
  end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  self._notes, self._keys, self._text = kept, keys, nil
end

--- Writes a line of text above the bars.
---@param text any
function methods:write(text)
  if self._off then return end
  terminal.beside_bars(function() io.stderr:write(tostring(text), "\n") end)
end

--- Draws the last state. Later updates are not drawn.
function methods:close()
  if self._closed then return end
  self._closed = true
  if not self._off then draw_last(self, now()) end
end

--- Iterates over the object that the bar was made for, counting; over 1, 2, … for a number of
--- steps. Closes the bar at the end. `for i, x in ipairs(bar) do` counts the items besides.
---@return fun(): any ...
function methods:iter()
  if not self._iterate then
    fail("tqdm: this bar was made without anything to iterate over; call bar:update(), or give tqdm a " ..
      "loader, a list, a data set or a number of steps")
  end
  local next_value, state, control = self._iterate()
  local started = false
  local function step(...)
    control = ...
    if control == nil then
      self:close()
      return
    end
    return ...
  end
  return function()
    if started then self:update(1) end
    started = true
    return step(next_value(state, control))
  end
end

--- Returns the number of steps; nil when it is unknown.
---@return number?
function methods:len() return self._total end

local Bar = properties.define("tqdm", {
  call = function() fail("tqdm: a bar is walked by its iter: for x, y in bar:iter() do ... end") end,
  get = {
    n = function(self) return self._n end,
    total = function(self) return self._total end,
    disable = function(self) return self._off end,
  },
  methods = methods,
})
enumerable.of_iter(getmetatable(Bar.new()))

local OPTIONS = {
  total = { "integer", min = 0, optional = true },
  desc = { "string", optional = true },
  unit = { "string", default = "it" },
  disable = { "boolean", default = false },
  leave = { "boolean", default = true },
  main_process_only = { "boolean", default = true },
}

-- ---- what a bar iterates over

local function length_of(value)
  local known, length = pcall(value.len, value)  -- a stream may not know
  return known and length or nil
end

-- An iterator over at(1) to at(n).
local function positions(n, at)
  return function()
    local i = 0
    return function()
      i = i + 1
      if i <= n then return at(i) end
    end
  end
end

local function of_table(value)
  if type(value.iter) == "function" then
    return function() return value:iter() end, value.len and length_of(value)
  elseif type(value.get) == "function" and type(value.len) == "function" then
    return positions(value:len(), function(i) return value:get(i) end), value:len()
  elseif getmetatable(value) == nil and ordered.is_list(value) then
    return positions(#value, function(i) return value[i] end), #value
  end
end

-- How to iterate over what a bar is made for, and its length where that is known.
local function iteration(value)
  if type(value) == "number" then
    value = options.value("tqdm", "the number of steps", value, { "integer", min = 0 })
    return positions(value, function(i) return i end), value
  elseif type(value) == "function" then
    return function() return value end
  end
  local iterate, length
  if type(value) == "table" then iterate, length = of_table(value) end
  if not iterate then
    fail("tqdm: expected a loader, a data set, a list, an iterator function or a number of steps, got %s",
      options.show(value))
  end
  return iterate, length
end

-- tqdm { total = n }: options alone.
local function are_options(value)
  if type(value) ~= "table" or getmetatable(value) ~= nil or next(value) == nil then return false end
  for name in pairs(value) do
    if not OPTIONS[name] then return false end
  end
  return true
end

terminal.bars = { open = open, hide = hide, show = show }

--- Makes a progress bar.
---@param iterable any a loader or another object with `iter` (and `len`), a data set, a list, an
---  iterator function, or the number of steps; nil or left out: `update` counts
---@param opts { total: integer?, desc: string?, unit: string?, disable: boolean?, leave: boolean?,
---  main_process_only: boolean? }?
---@return accelerate.tqdm
local tqdm = properties.callable("tqdm", function(iterable, opts)
  if type(iterable) == "boolean" then
    fail("tqdm: a boolean as first argument is not supported; use the option main_process_only")
  end
  if opts == nil and are_options(iterable) then iterable, opts = nil, iterable end
  opts = options.check("tqdm", opts, OPTIONS)
  local bar, length = Bar.new(), nil
  if iterable ~= nil then bar._iterate, length = iteration(iterable) end
  bar._total, bar._desc, bar._unit, bar._leave = opts.total or length, opts.desc, opts.unit, opts.leave
  bar._n, bar._keys, bar._notes, bar._closed = 0, {}, {}, false
  -- not PartialState, which would choose a device and keep notebook_launcher from forking
  bar._off = opts.disable or (opts.main_process_only and core.dist.local_rank() ~= 0)
  bar._terminal = terminal.notebook or terminal.is_terminal(terminal.STDERR)
  bar._interval = bar._terminal and 0.1 or 10
  bar._start = now()
  bar._drawn = bar._start
  if bar._terminal and not bar._off then
    open[#open + 1] = bar
    draw(bar, bar._start)
  end
  return bar
end)

return tqdm
