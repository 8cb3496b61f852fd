-- host/launch/session.c and lua/accelerate/prompt/ranks.lua: a prompt of several ranks, on a real
-- (pseudo) terminal.
local Session = require "spec.support.session"
local host = require "spec.support.host"
local processes = require "spec.support.processes"

local at_terminal = Session.specs(it, pending)

describe("the prompt of several ranks", function()
  local s
  local function start(ranks, arguments, env)
    local words = { "--num_processes", tostring(ranks), "--cpu", "-i" }
    for _, word in ipairs(arguments or {}) do words[#words + 1] = word end
    s = Session.open(words, env)
  end
  local RANK = "core = require 'accelerate.core'; rank = core.dist.rank()"

  at_terminal("runs each chunk in all ranks and shows rank 0's value, on 1 to 4", function()
    for n = 1, 4 do
      start(n)
      s:ask(RANK, "")
      s:ask("local x = tensor.full({ 2 }, rank + 1.0)", "")
      s:ask("core.dist.all_reduce(x); x:sum():item(), rank", ("^%d\t0\n"):format(n * (n + 1)))
      s:ask("_1 + x:numel()", ("^%d\n"):format(n * (n + 1) + 2))
      s:expect("> $")
      s:send("\4")
      assert.equal(0, s:finish())
    end
  end)

  at_terminal("shows the values of all ranks after :ranks, equal ones once", function()
    start(4)
    s:ask(RANK, "")
    s:ask(":ranks rank * 2", "^rank 0: 0\nrank 1: 2\nrank 2: 4\nrank 3: 6\n")
    s:ask(":ranks rank == 3, 'a'", '^ranks 0%-2: false\t"a"\nrank 3: true\t"a"\n')
    s:ask(":ranks 7", "^all 4 ranks: 7\n")
    s:ask(":ranks { rank < 2, ('x'):rep(100) }", "^ranks 0%-1:\n{\n  true,\n")
    s:ask("_[1]", "^true\n")
    s:stop()
    start(1)
    s:ask(":ranks 7", "accel%-run: :ranks needs several")
    s:stop()
  end)

  at_terminal("names the ranks whose chunk failed, equal errors once, and goes on", function()
    start(3)
    s:ask(RANK, "")
    s:ask("if rank == 1 then error('odd') end; 'value'", "accel%-run: rank 1: %[2%]:1: odd\nstack traceback:")
    s:ask("error('all')", "accel%-run: all 3 ranks: %[3%]:1: all\nstack traceback:")
    s:expect("%[3%]:1 is: error%('all'%)\n")
    s:ask("error(rank == 0 and 'zero' or 'others')", "accel%-run: rank 0: %[4%]:1: zero\n")
    s:expect("accel%-run: ranks 1%-2: %[4%]:1: others\n")
    s:ask("x x", "accel%-run: %[5%]:1: '=' expected near 'x'")
    s:ask(":ranks rank", "^rank 0: 0\nrank 1: 1\nrank 2: 2\n")
    s:stop()
  end)

  at_terminal("ends a collective that a rank leaves out when that rank's chunk ends", function()
    start(4)
    s:ask(RANK, "")
    local from = processes.now()
    s:ask("if rank ~= 2 then core.dist.barrier() end",
      "accel%-run: rank[^\n]*barrier: rank %d has ended the chunk and will not take part in this %(it " ..
      "has called none")
    s:ask("if rank == 1 then error('first') end; core.dist.barrier()", "accel%-run: rank 1: %[3%]:1: first\n")
    s:expect("accel%-run: ranks? 0[^\n]*barrier: rank %d has ended the chunk")
    assert.is_true(processes.now() - from < 8 * host.stretch())
    s:ask("x = tensor.ones(1); core.dist.all_reduce(x); x:item()", "^4\n")
    s:ask("core.dist.all_reduce(tensor.ones(rank + 1))", "accel%-run: all 4 ranks: [^\n]*ranks disagree")
    s:ask("core.dist.all_reduce(x); x:item()", "^16\n")
    s:stop()
  end)

  at_terminal("ends a collective at its time limit when a rank is late, and goes on", function()
    start(2, { "--timeout", host.limit(1) })
    s:ask(RANK, "")
    local late = os.tmpname()
    os.remove(late)
    s:ask(("if rank == 0 then local _, m = pcall(core.dist.barrier); io.open(%q, 'w'):close(); " ..
      "error(m, 0) else repeat until io.open(%q) end"):format(late, late),
      "accel%-run: rank 0: [^\n]*waited [%d.]+ s for rank 1, " ..
      "which has called none yet %(%-%-timeout sets the limit%)")
    os.remove(late)
    s:ask("x = tensor.ones(1); core.dist.all_reduce(x); x:item()", "^2\n")
    s:stop()
  end)

  at_terminal("stops a chunk on all ranks at Ctrl-C, in a loop and in a collective", function()
    start(3)
    s:ask(RANK, "")
    s:ask("kept = rank", "")
    for _, loop in ipairs { "while true do end",
      "if rank == 1 then while true do kept = kept + 0 end end; " ..
      "core.dist.barrier()" } do
      s:ask("if rank == 0 then io.write('on\\n') end; " .. loop, "^on\n")
      processes.sleep(0.3)
      s:send("\3")
      s:expect("accel%-run: [^\n]*interrupted\n")
      s:ask("x = tensor.ones(1); core.dist.all_reduce(x); x:item()", "^3\n")
    end
    s:ask(":ranks kept", "^rank 0: 0\nrank 1: 1\nrank 2: 2\n")
    s:stop()
  end)

  at_terminal("stops a chunk on all ranks when rank 0 or the launcher alone is interrupted", function()
    start(2)
    s:ask("ffi = require 'ffi' ffi.cdef 'int getpid(); int getppid(); int kill(int, int);'", "")
    for _, which in ipairs { "getpid", "getppid" } do
      s:ask(("if require('accelerate.core').dist.rank() == 0 then ffi.C.kill(ffi.C.%s(), 2) end; "):format(
        which) ..
        "while true do end", "")
      s:expect("accel%-run: [^\n]*interrupted\n")
    end
    s:ask("1 + 1", "^2\n")
    s:stop()
  end)

  at_terminal("asks at a second Ctrl-C while another rank goes on, and ends the run after yes", function()
    start(2)
    s:ask(RANK, "")
    s:ask("if rank == 1 then while true do pcall(function() while true do end end) end end",
      "accel%-run: rank 1 still runs the chunk; Ctrl%-C stops it\n")
    s:insist("\3", "interrupted twice: end it, with all that it holds%? %[y/N%] ")
    s:send("y\n")
    s:expect("accel%-run: the run was ended by SIGINT")
    assert.equal(130, s:finish())
  end)

  at_terminal("prefixes what other ranks print, before the next prompt; --tee 0 and --quiet do not",
    function()
    start(3)
    s:ask(RANK, "")
    for _ = 1, 5 do
      s:ask("print('from ' .. rank)", "")
      s:expect("from 0\n")
      s:expect("%[%d+%]> $")
      local text = s.text:match("from 0\n.*$") or ""
      assert.is_truthy(s.text:find("[1]:from 1\n", 1, true), text)
      assert.is_truthy(s.text:find("[2]:from 2\n", 1, true), text)
      s.text, s.at = "> ", 1
    end
    s:stop()
    start(2, { "--tee", "0" })
    s:ask("print('from ' .. require('accelerate.core').dist.rank())", "")
    s:expect("from %d\n[^\n]*from %d\n")
    assert.is_nil(s.text:find("[1]:", 1, true))
    s:stop()
    start(2, { "--quiet" })
    s:ask("print('from ' .. require('accelerate.core').dist.rank()); 5", "from 0\n5\n")
    s:expect("> $")
    assert.is_nil(s.text:find("from 1", 1, true))
    s:stop()
  end)

  at_terminal("follows a script with -i, with its locals in all ranks, also one that fails", function()
    host.in_folder(function(folder)
      local path = folder .. "/s.lua"
      local f = assert(io.open(path, "w"))
      f:write("local rank = require('accelerate.core').dist.rank()\nlocal value = 40 + rank\n",
        "if arg[1] and rank == 1 then error('failed') end\nlocal after = 1\n")
      f:close()
      start(2, { path })
      s:ask(":ranks value, after", "^rank 0: 40\t1\nrank 1: 41\t1\n")
      s:stop()
      start(2, { path, "x" })
      s:expect("accel%-run: rank 1: [^\n]*s.lua:3: failed\n")
      s:ask(":ranks value, after", "^rank 0: 40\t1\nrank 1: 41\tnil\n")
      s:stop()
    end)
  end)

  at_terminal("ends with the usual report when a rank dies, idle or in a chunk", function()
    for _, chunk in ipairs { "", "while true do end" } do
      start(3)
      s:ask("ffi = require 'ffi' ffi.cdef 'int getpid();' pid = ffi.C.getpid()", "")
      s:ask(":ranks pid", "rank 1: (%d+)\n")
      local pid = tonumber(s.text:match("rank 1: (%d+)\n"))
      if chunk ~= "" then s:ask(chunk, "") else s:expect("> $") end
      processes.sleep(0.2)
      processes.kill(pid, 9)
      s:expect("accel%-run: rank 1 of 3 was killed by SIGKILL")
      s:expect("accel%-run: the other ranks were\n")
      assert.equal(137, s:finish())
    end
  end)

  at_terminal("measures rank 0 after :time, and shows help once", function()
    start(2)
    s:ask(":time 6 * 7", "^[%d.]+ %a+ %([^\n]*%)\n42\n")
    s:ask("?nn.Linear", "^nn%.Linear%(in_features, out_features, %[bias%], %[opts%]%)\n")
    s:expect("> $")
    assert.is_nil(s.text:find("[1]:", 1, true))
    s:stop()
  end)

  at_terminal("says why the session ends when a rank leaves by itself", function()
    start(2)
    s:ask("if require('accelerate.core').dist.rank() == 1 then os.exit(0) end",
      "accel%-run: rank 1 has ended, and the session with it\n")
    assert.equal(0, s:finish())
  end)

  it("reads chunks from a pipe", function()
    local status, out, err = host.run({ "--num_processes", "2", "--cpu", "-i" },
      { stdin = "rank = require('accelerate.core').dist.rank()\n:ranks rank\nerror('no')\n'last'" })
    assert.equal(0, status)
    assert.equal('rank 0: 0\nrank 1: 1\n"last"\n', out)
    assert.matches("accel%-run: all 2 ranks: %[3%]:1: no\nstack traceback:\n\t%[3%]:1: in main chunk\n", err)
  end)
end)
