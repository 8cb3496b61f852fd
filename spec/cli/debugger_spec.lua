-- lua/accelerate/prompt/debugger.lua and frames.lua: accelerate.breakpoint() and :debug.
local Session = require "spec.support.session"
local host = require "spec.support.host"
local processes = require "spec.support.processes"

local at_terminal = Session.specs(it, pending)

local SCRIPT = [[
local accelerate = require "accelerate"
local scale = 3
local function inner(a, b)
  local c = a * b
  c = c + 1
  return c
end
local function outer(x, ...)
  local y = x + scale
  accelerate.breakpoint()
  local z = inner(x, y)
  for i = 1, 2 do
    y = y + i
  end
  return z, y
end
local total = 0
for i = 1, 500 do total = total + inner(i, 2) end
local z, y = outer(2, "first", nil)
print("end", z, y, total)
]]

describe("accelerate.breakpoint()", function()
  after_each(processes.clean)

  -- What commands on stdin show.
  local function debugged(commands, script)
    local path = processes.script(script or SCRIPT)
    local status, out, err = host.run({ path }, { stdin = table.concat(commands, "\n") .. "\n" })
    return (out:gsub(path:gsub("%p", "%%%0"), "s.lua")), status, (err:gsub(path:gsub("%p", "%%%0"), "s.lua"))
  end

  it("shows where the script is, and goes on", function()
    local out, status = debugged { "c" }
    assert.equal("s.lua:10: in function 'outer'\n->   10    accelerate.breakpoint()\nend\t11\t8\t250999.9\n",
      (out:gsub("\t%d+\n", "\t250999.9\n")))
    assert.equal(0, status)
  end)

  it("shows the functions, their locals, variable arguments and upvalues", function()
    local out = debugged { "w", "a", "up", "a", "down", "c" }
    assert.matches(">  1  s%.lua:10: in function 'outer'\n   2  s%.lua:19: in main chunk\n", out)
    assert.matches("locals\n  x = 2\n  y = 5\n  %.%.%. %[1%] = \"first\"\n  %.%.%. %[2%] = nil\n" ..
      "upvalues\n  scale = 3\n", out)
    assert.matches("s%.lua:19: in main chunk\n%->   19  local z", out)
    assert.matches("\n  total = 251000\n", out)
  end)

  it("evaluates in the selected function, and sets locals, upvalues and globals", function()
    local out = debugged { "x + y", "p scale, ...", "y = 10", "scale = scale * 2", "up", "total = -1",
      "fresh = total", "!print(fresh)", "nowhere.x", "x x", "c" }
    assert.matches("\n7\n3\t\"first\"\tnil\n", out)
    assert.matches("\n%-1\n%*%*%* %(debug%):1: attempt to index global 'nowhere' %(a nil value%)\n", out)
    assert.matches("\n%*%*%* %(debug%):1: '=' expected near 'x'\n", out)
    assert.matches("\nend\t21\t13\t%-1\n", out)
  end)

  it("takes several lines for one piece of Lua", function()
    local out = debugged { "for i = 1, 2 do", "print('got', i * x)", "end", "c" }
    assert.matches("\ngot\t2\ngot\t4\nend\t", out)
  end)

  it("steps over calls, into them and out of them, in what was compiled too", function()
    local function places(commands)
      local list = {}
      for line in debugged(commands):gmatch "s%.lua:(%d+): in" do list[#list + 1] = line end
      return table.concat(list, " ")
    end
    assert.equal("10 11 12 13 12 13 12 15 20", places { "n", "n", "n", "n", "n", "n", "n", "n", "c" })
    assert.equal("10 11 4 5 6 12", places { "s", "s", "s", "s", "s", "c" })
    assert.equal("10 11 4 12 20", places { "n", "s", "r", "r", "c" })
    assert.equal("10 19 20", places { "up", "n", "c" })
  end)

  it("repeats the last command after an empty line, and lists lines", function()
    local out = debugged { "n", "", "l 3", "l", "c" }
    assert.matches("s%.lua:11: [^\n]*\n[^\n]*\ns%.lua:12: ", out)
    assert.matches("\n      1  local accelerate = require \"accelerate\"\n", out)
    assert.matches("\n      6    return c\n[^\n]*\n      8  local function outer", out)
    assert.matches("\n%->   12    for i = 1, 2 do\n", out)
  end)

  it("passes over the library's own lines", function()
    local out = debugged({ "s", "s", "w", "c" }, [[
local accelerate, nn = require "accelerate", require "accelerate.nn"
local Net = nn.class "Net"
function Net:init() self.fc = nn.Linear(2, 2) end
function Net:forward(x)
  return self.fc(x)
end
local net = Net()
accelerate.breakpoint()
local y = net(require("accelerate.tensor").ones(1, 2))
]])
    assert.matches("s%.lua:5: in function 'forward'\n[^\n]*\n>  1  s%.lua:5: in function 'forward'\n" ..
      "   2  s%.lua:9: in main chunk\n", out)
  end)

  it("steps within a coroutine, and out of one that has ended", function()
    local out = debugged({ "n", "n", "n", "n", "c" }, [[
local accelerate = require "accelerate"
local co = coroutine.wrap(function()
  accelerate.breakpoint()
  local a = coroutine.yield(1)
  local b = a
end)
co()
local k = 5
co(k)
local last = 9
]])
    local list = {}
    for line in out:gmatch "s%.lua:(%d+): in" do list[#list + 1] = line end
    assert.equal("3 4 5 6 10", table.concat(list, " "))
  end)

  it("raises at the end of stdin, where that is no terminal", function()
    local _, status, err = debugged { "x" }
    assert.equal(1, status)
    assert.matches(
      "^accel%-run: s%.lua:10: breakpoint: stdin has ended, which is no terminal: " ..
      "commands come from it", err)
    assert.matches("\n\ts%.lua:10: in function 'outer'\n", err)
  end)

  it("ends the run at quit, also within pcall", function()
    local out, status, err = debugged({ "q" }, "print(pcall(require('accelerate').breakpoint))\nprint 'on'")
    assert.equal(1, status)
    assert.is_nil(out:find("on\n", 1, true))
    assert.equal("accel-run: the run was ended in the debugger, at s.lua:1\n", err)
  end)

  it("does nothing where ACCELERATE_BREAKPOINT is 0", function()
    local path = processes.script(SCRIPT)
    local status, out = host.run({ path }, { env = { ACCELERATE_BREAKPOINT = "0" } })
    assert.equal(0, status)
    assert.matches("^end\t", out)
  end)

  it("refuses a worker of a loader, and options that it does not have", function()
    local _, _, err = debugged({}, [[
local accelerate, data = require "accelerate", require "accelerate.data"
local set = data.class "S"
function set:len() return 2 end
function set:get(i) accelerate.breakpoint() return { i } end
for _ in data.DataLoader(set(), { num_workers = 1 }):iter() do end
]])
    assert.matches("breakpoint: this is worker 0 of a loader, which has no terminal: make the loader with " ..
      "num_workers = 0", err)
    _, _, err = debugged({}, "require('accelerate').breakpoint { ranks = 1 }")
    assert.matches("breakpoint: [^\n]*'ranks'", err)
  end)
end)

describe("the debugger at a terminal", function()
  local s
  after_each(processes.clean)

  local function ask(line, pattern, rank)
    s:expect(rank and ("%(debug, rank " .. rank .. "%) $") or "%(debug%) $")
    s:send(line .. "\n")
    s:expect("\n")
    return s:expect(pattern)
  end

  at_terminal("completes names of the function, and drops a line at Ctrl-C", function()
    s = Session.open { processes.script(SCRIPT) }
    s:expect("%(debug%) $")
    s:send("sca\t\n")
    s:expect("scale")
    s:expect("\n3\n")
    s:expect("%(debug%) $")
    s:send("nonsense\3")
    ask("io.write('on\\n') while true do end", "^on\n")
    s:send("\3")
    s:expect("%*%*%* %(debug%):1: interrupted")
    ask("c", "end\t11")
    assert.equal(0, s:finish())
  end)

  at_terminal("is there after an error of a session, in the functions that raised it", function()
    s = Session.open { "-i", processes.script [[
local tensor = require "accelerate.tensor"
local function g(list) local n = #list; error("no " .. n) end
local function f(x) local kept = x + 1; tensor.no_grad(function() g({ x, kept }) end) end
f(4)
]] }
    s:expect("no 2\n")
    s:expect(":debug looks at the functions where this was raised\n")
    s:ask(":debug", "no 2\n[^\n]*:2: in function 'g'\n")
    ask("p n", "^2\n")
    ask("list[2]", "^5\n")
    ask("next", "^%*%*%* the error has ended this")
    ask("up", ":3: in function")
    ask("up", ":3: in function 'f'\n")
    ask("kept", "^5\n")
    ask("q", "")
    s:ask("1 + 1", "^2\n")
    s:ask("local function h(v) local w = v.x end; h(nil)", "attempt to index local 'v'")
    s:ask(":debug", "attempt to index[^\n]*\n%[3%]:1: in function 'h'\n%->    1  local function h")
    ask("a", "^locals\n  v = nil\n")
    ask("q", "")
    s:ask("tensor.zeros(2 ^ 50)", "out of memory")
    s:ask(":debug", ":debug: there is no error whose functions are kept")
    s:stop()
  end)

  at_terminal("returns to the prompt at quit, and steps no further than the chunk", function()
    s = Session.open { "-i" }
    s:ask("function f() accelerate.breakpoint() return 7 end", "")
    s:ask("f()", "in function 'f'")
    ask("q", "accel%-run: the debugger was left with quit\n")
    s:ask("f()", "in function 'f'")
    ask("s", "^7\n")
    s:ask("f()", "in function 'f'")
    ask("c", "^7\n")
    s:stop()
  end)

  -- No rank prints while another one is at the debugger's prompt.
  local RANKS = [[
local accelerate = require "accelerate"
local accelerator = accelerate.Accelerator()
local mine = accelerator.process_index * 10
if select(1, ...) == "one" then accelerate.breakpoint { rank = 1 } else accelerate.breakpoint() end
local sum = accelerator:reduce(require("accelerate.tensor").ones(1) * mine, "sum"):item()
accelerator:wait_for_everyone()
print(("rank %d has %d"):format(accelerator.process_index, sum))
]]

  at_terminal("has one rank at a time, while the others' time limits stand still", function()
    local limit = host.limit(1)
    s = Session.open { "--num_processes", "2", "--cpu", "--timeout", limit, processes.script(RANKS), "one" }
    s:expect("rank 1: [^\n]*:4: in main chunk\n")
    processes.sleep(2.5 * limit)
    ask("mine", "^10\n", 1)
    ask("n", "rank 1: [^\n]*:5: in main chunk\n", 1)
    processes.sleep(1.5 * limit)
    s:expect("%(debug, rank 1%) $")
    s:send("dropped\3")
    s:expect("%(debug, rank 1%) ")
    s:send("mine = 25\n")
    s:expect("\n")
    ask("c", "rank %d has 25\n", 1)
    s:expect("rank %d has 25\n")
    assert.equal(0, s:finish())
  end)

  at_terminal("goes to another rank where one has stepped into a collective", function()
    s = Session.open { "--num_processes", "2", "--cpu", processes.script(RANKS) }
    local first = s:expect("rank (%d): [^\n]*:4: in main chunk\n")
    local second = first == "0" and "1" or "0"
    ask("n", ("rank %s: [^\n]*:5: in main chunk\n"):format(first), first)
    ask("n", ("rank %s: [^\n]*:4: in main chunk\n"):format(second), first)
    ask("c", "", second)
    s:expect(("rank %s: [^\n]*:6: in main chunk\n"):format(first))
    ask("sum", "^10\n", first)
    ask("c", "rank %d has 10\n", first)
    assert.equal(0, s:finish())
  end)

  at_terminal("ends all ranks at quit, and gives the terminal back when another rank fails", function()
    s = Session.open { "--num_processes", "2", "--cpu", processes.script(RANKS), "one" }
    s:expect("in main chunk\n")
    ask("q", "the run was ended in the debugger, at [^\n]*:4\n", 1)
    s:expect("rank 1 of 2 failed: os.exit%(1%) was called")
    assert.equal(1, s:finish())
    local seen = host.free_path() -- a file that is made once the prompt has been seen
    s = Session.open { "--num_processes", "2", "--cpu", processes.script(([[
local accelerate = require "accelerate"
local dist = require("accelerate.core").dist
if dist.rank() == 1 then accelerate.breakpoint() end
repeat until io.open(%q)
error "lost"
]]):format(seen)) }
    s:expect("%(debug, rank 1%) ")
    processes.script("", seen)
    s:expect("rank 0 of 2 failed: [^\n]*lost")
    assert.equal(1, s:finish())
  end)

  at_terminal("looks at the error of a rank of a session", function()
    s = Session.open { "--num_processes", "2", "--cpu", "-i" }
    s:ask("core = require 'accelerate.core'; rank = core.dist.rank()", "")
    s:ask("local function f(n) if rank == 1 then error('odd') end end; f(rank + 5)", "rank 1: %[2%]:1: odd")
    s:ask(":debug", "odd\nrank 1: %[2%]:1: in function 'f'\n")
    ask("n", "", 1)
    ask("p n", "^6\n", 1)
    ask("q", "", 1)
    s:ask(":debug 0", "^:debug: there is no error whose functions are kept")
    s:ask("if rank == 1 then accelerate.breakpoint() end; rank", "rank 1: %[5%]:1: in main chunk")
    s:expect("%(debug, rank 1%) $")
    s:send("half\3")
    s:expect("%(debug, rank 1%) ")
    s:send("c\n")
    s:expect("\n0\n")
    s:ask(":ranks rank", "^rank 0: 0\nrank 1: 1\n")
    s:stop()
  end)
end)
