--- A progress bar on stderr, by default on the machine's main process only.
---
---   for x, y in utils.tqdm(loader, { desc = "epoch 1" }):iter() do ... end
---   local bar = utils.tqdm(1000);  bar:update(1);  bar:set_postfix({ loss = loss });  bar:close()
---
--- On a terminal the line is drawn again at most ten times a second, as wide as the terminal is
--- then; bars within bars have lines of their own. In a notebook's cell one line is drawn again.
--- Elsewhere (a log file) a line is written every ten seconds, so that a log stays short.
local core = require "accelerate.core"
local ffi = require "ffi"
local options = require "accelerate.utils.options"
local properties = require "accelerate.utils.properties"
local state = require "accelerate.state"
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

local Bar = properties.define("tqdm", {
  call = function() fail("tqdm: a bar is walked by its iter: for x, y in bar:iter() do ... end") end,
  get = {
    n = function(self) return self._n end,
    total = function(self) return self._total end,
    disable = function(self) return self._off end,
  },
  methods = {
    --- Counts `n` more steps (default 1) and draws when it is time.
    update = function(self, n)
      self._n = self._n + (n or 1)
      if self._off or self._closed then return end
      local at = now()
      if at - self._drawn >= self._interval then draw(self, at) end
    end,
    --- Sets the text in front; nil: none.
    set_description = function(self, text) self._desc = text end,
    --- Sets a text shown after the rate.
    set_postfix_str = function(self, text)
      self._notes, self._keys, self._text = {}, {}, text ~= "" and text or nil
    end,
    --- Draws the bar now.
    refresh = function(self)
      if not (self._off or self._closed) then draw(self, now()) end
    end,
    --- Sets values shown after the rate: `{ loss = loss }`. A tensor is read only when the line is
    --- drawn.
    set_postfix = function(self, notes)
      local keys = {}
      for key, value in pairs(notes) do
        keys[#keys + 1] = key
        if core.is_tensor(value) then notes[key] = value:detach() end
      end
      table.sort(keys)
      self._notes, self._keys, self._text = notes, keys, nil
    end,
    --- Writes a line of text without breaking the bar.
    write = function(self, text)
      if self._off then return end
      io.stderr:write((self._terminal and "\r\27[K" or "") .. tostring(text) .. "\n")
      if not self._terminal then return end
      local at = now()
      for _, bar in ipairs(open) do draw(bar, at) end
    end,
    --- Draws the last state. Later updates are not drawn.
    close = function(self)
      if self._closed then return end
      self._closed = true
      if not self._off then draw_last(self, now()) end
    end,
    --- Iterates over the object that the bar was made for, counting.
    iter = function(self)
      local next_value = self._source:iter()
      local function step(...)
        if (...) == nil then
          self:close()
          return
        end
        return ...
      end
      local started = false
      return function()
        if started then self:update(1) end
        started = true
        return step(next_value())
      end
    end,
    len = function(self) return self._total end,
  },
})

local OPTIONS = {
  total = { "integer", min = 0, optional = true },
  desc = { "string", optional = true },
  unit = { "string", default = "it" },
  disable = { "boolean", default = false },
  leave = { "boolean", default = true },
  main_process_only = { "boolean", default = true },
}

--- Turns a list into something with `iter` and `len`.
local function source_of(value)
  if type(value) ~= "table" or type(value.iter) == "function" then return value end
  return {
    len = function() return #value end,
    iter = function()
      local i = 0
      return function()
        i = i + 1
        return value[i]
      end
    end,
  }
end

--- Makes a progress bar.
---@param iterable any a loader or another object with `iter` (and `len`), a list, or the number of
---  steps
---@param opts { total: integer?, desc: string?, unit: string?, disable: boolean?, leave: boolean?,
---  main_process_only: boolean? }?
return function(iterable, opts)
  if type(iterable) == "boolean" then
    fail("tqdm: a boolean as first argument is not supported; use the option main_process_only")
  end
  opts = options.check("tqdm", opts, OPTIONS)
  local bar = Bar.new()
  local total = opts.total
  if type(iterable) == "number" then
    total = total or iterable
  elseif iterable ~= nil then
    bar._source = source_of(iterable)
    if type(bar._source) ~= "table" then
      fail("tqdm: expected a loader, a list or a number of steps, got a %s", type(iterable))
    end
    if not total and bar._source.len then
      local known, length = pcall(bar._source.len, bar._source)  -- a stream may not know
      total = known and length or nil
    end
  end
  bar._total, bar._desc, bar._unit, bar._leave = total, opts.desc, opts.unit, opts.leave
  bar._n, bar._keys, bar._notes, bar._closed = 0, {}, {}, false
  bar._off = opts.disable or (opts.main_process_only and not state.PartialState().is_local_main_process)
  bar._terminal = terminal.notebook or terminal.is_terminal(terminal.STDERR)
  bar._interval = bar._terminal and 0.1 or 10
  bar._start = now()
  bar._drawn = bar._start
  if bar._terminal and not bar._off then
    open[#open + 1] = bar
    draw(bar, bar._start)
  end
  return bar
end
