-- host/repl.c and lua/accelerate/prompt: the prompt, on a real (pseudo) terminal.
local Session = require "spec.support.session"
local host = require "spec.support.host"
local processes = require "spec.support.processes"

local at_terminal = Session.specs(it, pending)

describe("the prompt", function()
  local s
  local function start(arguments, env) s = Session.open(arguments or {}, env) end

  at_terminal("prints the values of expressions", function()
    start()
    s:ask("1 + 1", "^2\n")
    s:ask("'a', nil, 3", '^"a"\tnil\t3\n')
    s:ask("= 7", "^7\n")
    s:ask("x = 5", "")
    s:ask("x * 2", "^10\n")
    s:expect("> $")
    s:send("\4")
    assert.equal(0, s:finish())
  end)

  at_terminal("shows nested values, in several lines where one is too short", function()
    start()
    s:ask("tensor.ones(2, 3).shape", "^{ 2, 3 }\n")
    s:ask("{ 1, 'a', { b = true } }", '^{ 1, "a", { b = true } }\n')
    s:ask("nn.Linear(20, 10):state_dict()",
      "^{ weight = tensor %[10, 20%] float32, bias = tensor %[10%] float32 }\n")
    s:ask("t = {} t.t = t t", "^{ t = <circle: the table that holds this> }\n")
    s:ask("'one line', { ('x'):rep(80), 2 }", '^"one line"\n{\n  "x+",\n  2,\n}\n')
    s:ask("4;", "^%[7%]> $")
    s:stop()
  end)

  at_terminal("has the values of the last chunk that had some", function()
    start()
    s:ask("6 * 7", "^42\n")
    s:ask("_ + 1", "^43\n")
    s:ask("'a', 'b'", '^"a"\t"b"\n')
    s:ask("_1 .. _2", '^"ab"\n')
    s:ask("_2", "^nil\n")
    s:ask("for _, v in ipairs { 1 } do y = v end _", '^"ab"\n')
    s:stop()
  end)

  at_terminal("keeps locals, and takes several statements", function()
    start()
    s:ask("local a = 1; local function f() return a end; a", "^1\n")
    s:ask("a = a + 1; f()", "^2\n")
    s:ask("local a = 10; f(), a", "^2\t10\n")
    s:ask("x = 5; x", "^5\n")
    s:stop()
  end)

  at_terminal("names the chunk and shows the line in an error, the user's first", function()
    start()
    s:ask("function f(x) local y = x:add('no') return y end", "")
    s:ask("local y = tensor.ones(2)", "")
    s:ask("f(y)", "accel%-run: %[1%]:1: add: argument 2 %(b%)[^\n]*\n")
    s:expect("stack traceback:\n\t%[1%]:1: in function 'f'\n\t%[3%]:1: in main chunk\n")
    s:expect("%[1%]:1 is: function f%(x%) local y = x:add%('no'%) return y end\n")
    s:ask("nn.Linear(2, 3, { bais = true })",
      "%[4%]:1: Linear: unknown option 'bais'; did you mean 'bias'%?\n")
    s:expect("stack traceback:\n\t%[4%]:1: in main chunk\n")
    s:ask("error()", "%[5%]: error%(%) without a message\n")
    s:stop()
  end)

  at_terminal("reads statements over several lines", function()
    start()
    s:ask("for i = 1, 3 do", "")
    s:expect(">> $")
    s:send("  io.write(i, ';')\n")
    s:expect(">> $")
    s:send("end\n")
    s:expect("1;2;3;")
    s:stop()
  end)

  at_terminal("goes on after errors", function()
    start()
    s:ask("error('oops')", "accel%-run: .*oops\nstack traceback:")
    s:ask("x x", "'=' expected near 'x'")
    s:ask("nil + 1", "arithmetic on a nil value")
    s:ask("setmetatable({}, { __tostring = function() error('no') end })", "could not be printed")
    s:ask("2 * 3", "^6\n")
    s:stop()
  end)

  at_terminal("drops the line, and unfinished input, at Ctrl-C", function()
    start()
    s:expect("> $")
    s:send("y = 'dropped'")
    s:expect("dropped'")
    s:send("\3")
    s:ask("y", "^nil\n")
    s:ask("function f()", "")
    s:expect(">> $")
    s:send("\3")
    s:ask("4 * 4", "^16\n")
    s:stop()
  end)

  at_terminal("stops what runs at Ctrl-C, compiled or not, and keeps the session", function()
    start()
    s:ask("kept = 3", "")
    for _, loop in ipairs { "while true do os.time() end", "while true do kept = kept + 1 end",
      "local i = 0 while true do i = i + 1 end" } do
      s:ask("io.write('on\\n') " .. loop, "^on\n")
      processes.sleep(0.2) -- it is compiled by then
      s:send("\3")
      s:expect("interrupted\nstack traceback:")
      s:ask("3 * 3", "^9\n")
    end
    s:ask("kept > 3", "^true\n")
    s:stop()
  end)

  at_terminal("has the library's modules as globals, loaded when they are named", function()
    start()
    s:ask("package.loaded['accelerate.tensor'] == nil", "^true\n")
    s:ask("tensor.ones(2):sum():item()", "^2\n")
    s:ask("package.loaded['accelerate.tensor'] == tensor", "^true\n")
    s:ask("no_such_thing", "^nil\n")
    s:stop()
  end)

  at_terminal("follows a script with -i, also one that fails", function()
    host.in_folder(function(folder)
      local path = folder .. "/s.lua"
      local f = assert(io.open(path, "w"))
      f:write("value = 42\nif arg[1] then error('failed') end\n")
      f:close()
      start { "-i", path }
      s:ask("value", "^42\n")
      s:stop()
      start { "-i", path, "x" }
      s:expect(":2: failed\nstack traceback:")
      s:ask("value", "^42\n")
      s:stop()
    end)
  end)

  at_terminal("has the script's locals after -i, those before its error too", function()
    host.in_folder(function(folder)
      local path = folder .. "/s.lua"
      local f = assert(io.open(path, "w"))
      f:write("#!/usr/bin/env accel-run\nlocal a = select('#', ...)\nlocal function count() a = a + 1 " ..
        "return a end\n",
        "if arg[1] then\n  error('failed')\nend\nlocal b = 'last'\n")
      f:close()
      start { "-i", path }
      s:ask("count(), a, b", '^1\t1\t"last"\n')
      s:stop()
      start { "-i", path, "x" }
      s:expect("s.lua:5: failed\nstack traceback:\n")
      s:expect("s.lua:5: in main chunk\n")
      s:expect("s.lua:5 is: error%('failed'%)\n")
      s:ask("count(), b", "^2\tnil\n")
      s:stop()
    end)
  end)

  at_terminal("remembers lines from one session to the next", function()
    host.in_folder(function(folder)
      local env = { ACCELERATE_HISTORY = folder .. "/history" }
      start({}, env)
      s:ask("'remembered ' .. 1", '^"remembered 1"\n')
      s:expect("> $")
      s:send("\4")
      assert.equal(0, s:finish())
      start({}, env)
      s:expect("> $")
      s:send("\16\n") -- Ctrl-P: the line before
      s:expect('\n"remembered 1"\n')
      s:stop()
    end)
  end)

  at_terminal("takes UTF-8", function()
    start()
    s:ask("#'é'", "^2\n")
    s:stop()
  end)

  it("reads chunks from a pipe after -i, without a prompt", function()
    local status, out, err = host.run({ "-i", "-e", "x = 1" },
      { stdin = "local y = x + 1\ny\nerror('no')\n" ..
      "for i = 1, 2 do\n  print(i)\nend\n'last'" })
    assert.equal(0, status)
    assert.equal('2\n1\n2\n"last"\n', out)
    assert.matches("accel%-run: %[3%]:1: no\nstack traceback:\n\t%[3%]:1: in main chunk\n", err)
  end)

  it("is not used when stdin is no terminal", function()
    local status, out = host.run({}, { stdin = "print 'from stdin'" })
    assert.equal(0, status)
    assert.equal("from stdin\n", out)
  end)
end)
