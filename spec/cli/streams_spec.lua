-- host/script/streams.c: what is written to stdout and stderr.
local host = require "spec.support.host"
local processes = require "spec.support.processes"
local messages = require "spec.support.messages"

local has, matches = messages.has, messages.matches

-- `writes(fd, body)` calls body while `fd` is a socket that keeps writes apart; returns them.
local HEAD = [[
  local ffi = require "ffi"
  ffi.cdef "int socketpair(int, int, int, int *); int dup(int); int dup2(int, int);\
    long recv(int, void *, size_t, int);"
  local C = ffi.C
  local function writes(fd, body)
    local ends, kept, list, room = ffi.new "int[2]", C.dup(fd), {}, ffi.new "char[100000]"
    assert(C.socketpair(1, 5, 0, ends) == 0) -- AF_UNIX, SOCK_SEQPACKET
    io.stdout:flush()
    C.dup2(ends[1], fd)
    body()
    C.dup2(kept, fd)
    while true do
      local n = C.recv(ends[0], room, 100000, 64) -- MSG_DONTWAIT
      if n < 0 then return list end
      list[#list + 1] = ffi.string(room, n)
    end
  end
]]

describe("io.stderr:write", function()
  after_each(processes.clean)

  it("is one write for all values", function()
    local status, out, err = host.run { processes.script(HEAD .. [[
      local list = writes(2, function()
        assert(io.stderr:write("a", 1, 2.5, "\n") == io.stderr)
        io.stderr:write "no line"
      end)
      print(#list, list[1] == "a12.5\n", list[2])
      print(io.type(io.stderr), tostring(io.stderr):match "^file %(", io.stderr.seek == io.stdout.seek)
    ]]) }
    assert.are.equal(0, status, err)
    assert.are.equal("2\ttrue\tno line\nfile\tfile (\ttrue\n", out)
  end)

  it("refuses what a file's method refuses", function()
    local status, _, err = host.run { "-e", "io.stderr:write('x', {})" }
    assert.are.equal(1, status)
    has(err, "bad argument #2 to 'write' (string expected, got table)")
    assert.is_nil(err:find("^x"))
  end)
end)

describe("print of a rank", function()
  after_each(processes.clean)

  it("is one write for each line, also for a long one", function()
    local status, out, err = host.run { "--num_processes", "2", processes.script(HEAD .. [[
      local list = writes(1, function()
        print("a", 1, "b")
        io.write("c", "d", "\n")
        print(("x"):rep(40000), "y")
      end)
      assert(#list == 3 and list[1] == "a\t1\tb\n" and list[2] == "cd\n" and #list[3] == 40003, #list)
      print "done"
    ]]) }
    assert.are.equal(0, status, err)
    assert.are.equal("done\ndone\n", out)
  end)
end)

describe("stdout that cannot be written", function()
  after_each(processes.clean)

  -- Status and stderr of a script whose stdout the shell redirects.
  local function run(redirection, script, options)
    local command = ("'%s' %s '%s' 2>&1 %s; echo status $?"):format(host.path, options or "",
      processes.script(script), redirection)
    local pipe = io.popen(command)
    local text = pipe:read "*a"
    pipe:close()
    return tonumber(text:match "status (%d+)\n$"), text
  end

  it("makes the run fail, with the reason", function()
    for _, script in ipairs { "print 'x'", "print 'x' os.exit(0)", "for i = 1, 5000 do print(i) end" } do
      for redirection, reason in pairs { [">/dev/full"] = "No space left on device",
        ["1</dev/null"] = "Bad file descriptor" } do
        local status, text = run(redirection, script)
        assert.are.equal(1, status, text)
        has(text, "accel-run: stdout could not be written")
        assert.are.equal(1, select(2, text:gsub("could not be written", "")), text)
        if not script:find "for" then
          matches(text, "written: " .. reason .. ": some of what was printed is lost\n")
        end
      end
    end
  end)

  it("makes a run of several ranks fail, with the rank", function()
    local status, text = run(">/dev/full", "print 'x'", "--num_processes 2")
    assert.are.equal(1, status)
    matches(text, "rank [01] of 2 failed: stdout could not be written: No space left on device")
  end)

  it("is no matter for a script that prints nothing or has failed, nor if it was closed at the start",
    function()
    assert.are.equal(0, (run(">&-", "print 'x'")))
    assert.are.equal(0, (run(">/dev/full", "local x = 1")))
    assert.are.equal(0, (run("1</dev/null", "io.stderr:write 'x'")))
    local status, text = run(">/dev/full", "print 'x' os.exit(7)")
    assert.are.equal(7, status)
    assert.is_nil(text:find("could not be written", 1, true))
  end)
end)
