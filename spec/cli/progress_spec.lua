-- lua/accelerate/utils/tqdm.lua on a terminal.
local ffi = require "ffi"
local Session = require "spec.support.session"
local processes = require "spec.support.processes"

local at_terminal = Session.specs(it, pending)

-- The lines that a terminal shows after a text, and the longest that was written.
local function screen(text)
  local rows, row, column, widest, at = { {} }, 1, 0, 0, 1
  while at <= #text do
    local character = text:match("^[%z\1-\127\194-\244][\128-\191]*", at) or text:sub(at, at)
    local n, command = text:match("^\27%[(%d*)(%a)", at)
    if command then
      character = text:match("^\27%[%d*%a", at)
      if command == "A" then row = row - tonumber(n) end
      if command == "K" then rows[row] = { unpack(rows[row], 1, column) } end
    elseif character == "\r" then column = 0
    elseif character == "\n" then row = row + 1
    else
      column = column + 1
      rows[row][column] = character
      widest = math.max(widest, column)
    end
    rows[row] = rows[row] or {}
    at = at + #character
  end
  local lines = {}
  for i, list in ipairs(rows) do lines[i] = table.concat(list) end
  return lines, widest
end

describe("a progress bar on a terminal", function()
  -- What a script leaves on a terminal of so many columns.
  local function shown(columns, body)
    local path = processes.script(([[
      local ffi = require "ffi"
      ffi.cdef "int ioctl(int, unsigned long, ...);"
      ffi.C.ioctl(2, 0x5414, ffi.new("unsigned short[4]", { 24, %d, 0, 0 })) -- TIOCSWINSZ
      local utils = require("accelerate").utils
      io.stderr:write("\1")
      %s
      io.stderr:write("\2")
    ]]):format(columns, body))
    local s, raw = Session.open({ path }, { TERM = "xterm" }), ""
    local room = ffi.new("char[4096]")
    while not raw:find("\2", 1, true) do -- Session itself drops "\r"
      local n = ffi.C.read(s.fd, room, 4096)
      if n <= 0 then break end
      raw = raw .. ffi.string(room, n)
    end
    processes.clean()
    s:stop()
    return screen(raw:match("\1(.*)\2"))
  end

  at_terminal("is as wide as the terminal, without the bar where there is no room", function()
    local body = "local bar = utils.tqdm(4, { desc = 'name' }) bar:update(4) bar:close()"
    local lines, widest = shown(80, body)
    assert.matches("^name: 100%%|\226.*\136| 4/4 %[%d%d:%d%d<00:00, ", lines[1])
    assert.equal(79, widest)
    lines, widest = shown(44, body)
    assert.matches("^name: 100%% 4/4 %[%d%d:%d%d<00:00, ", lines[1])
    assert.is_true(widest <= 43)
    lines, widest = shown(20, body)
    assert.matches("^name: 100%% 4/4", lines[1])
    assert.is_true(widest <= 19)
  end)

  at_terminal("stands above bars within it, which stay or go", function()
    local lines = shown(80, [[
      for e in utils.tqdm({ 1, 2 }, { desc = "outer" }):iter() do
        local bar = utils.tqdm(3, { desc = "inner " .. e, leave = e == 1 })
        for _ = 1, 3 do
          bar:update()
          bar:refresh()
        end
        bar:write("line " .. e)
        bar:close()
      end
    ]])
    assert.matches("^line 1", lines[1])
    assert.matches("^inner 1: 100%%|", lines[2])
    assert.matches("^line 2", lines[3])
    assert.matches("^outer: 100%%|.* 2/2 ", lines[4])
    assert.is_nil((lines[5] or ""):find("%S"))
  end)

  at_terminal("makes room for what is printed and logged meanwhile, and leaves no remains", function()
    local lines = shown(80, [[
      local accelerate = require "accelerate"
      local accelerator = accelerate.Accelerator()
      local log = accelerate.logging.get_logger("train")
      local outer = utils.tqdm(2, { desc = "outer bar" })
      local inner = utils.tqdm(2, { desc = "inner bar", leave = false })
      accelerator:print("a")
      log:warning("b\nc")
      inner:write("d\ne")
      require("accelerate.messages.notice").here("f")
      inner:close()
      outer:update(2)
      outer:close()
    ]])
    assert.equal("a", lines[1])
    assert.matches("^WARNING:train:.*b$", lines[2])
    assert.same({ "c", "d", "e", "accelerate: f" }, { unpack(lines, 3, 6) })
    assert.matches("^outer bar: 100%%|.* 2/2 ", lines[7])
    assert.is_nil(table.concat(lines, "", 8):find("%S"))
  end)

  at_terminal("counts without a total, with texts after the rate", function()
    local lines = shown(80, [[
      local bar = utils.tqdm(nil, { desc = "all" })
      bar:update(7)
      bar:set_description("some")
      bar:set_postfix({ loss = 0.25, b = "x" })
      bar:refresh()
      bar:close()
      bar = utils.tqdm(nil)
      bar:set_postfix_str("text")
      bar:close()
    ]])
    assert.matches("^some: 7it %[%d%d:%d%d, [%d.]+%a+/%a+, b=x, loss=0.25%]$", lines[1])
    assert.matches("^0it %[%d%d:%d%d, .*, text%]$", lines[2])
  end)
end)
