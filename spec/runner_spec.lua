-- spec/support/run_specs: whatever goes wrong in a file counts, and what it leaves behind does.
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local processes = require "spec.support.processes"
local has = require("spec.support.messages").has

-- The runner's status and output for files { name = text }.
local function run(files, env)
  local status, out, err
  host.in_folder(function(folder)
    for name, text in pairs(files) do assert(fs.write(folder .. "/" .. name .. "_spec.lua", text)) end
    status, out, err = host.run({ folder }, { path = "spec/support/run_specs", env = env })
  end)
  return status, out, err
end

describe("the runner of the specs", function()
  if not io.open "spec/support/run_specs" then return end

  it("adds up what passed and what failed, and ends with the sum", function()
    local status, text = run { good = "it('works', function() end)", bad = "it('fails', error)" }
    assert.are.equal(1, status)
    assert.matches("\n1 passed, 1 failed\n$", text)
    status, text = run { good = "it('works', function() end)" }
    assert.are.equal(0, status, text)
    assert.matches("\n1 passed, 0 failed\n$", text)
  end)

  it("counts a file that crashes, hangs or ends early, and a run without tests", function()
    local status, text = run { crash = "it('ends', function() os.execute('kill -11 $PPID') end)",
      ["end"] = "it('ends', function() os.exit(0) end)" }
    assert.are.equal(1, status)
    has(text, "crash_spec.lua: ended with status 139 before its last line")
    has(text, "end_spec.lua: ended with status 0 before its last line")
    assert.matches("\n0 passed, 2 failed\n$", text)
    status, text = run({ hang = "it('waits', function() os.execute('sleep 60') end)" },
      { SPEC_SECONDS = "1" })
    assert.are.equal(1, status)
    has(text, "hang_spec.lua: took more than 1 s")
    assert.matches("\n0 passed, 1 failed\n$", text)
    status, text = run { none = "" }
    assert.are.equal(1, status)
    has(text, "no test ran")
  end)

  it("runs files in the order of its arguments, each once", function()
    host.in_folder(function(folder)
      local names = { "a", "b", "c" }
      for _, name in ipairs(names) do
        assert(fs.write(folder .. "/" .. name .. "_spec.lua", "it('works', function() end)"))
      end
      local status, out = host.run({ folder .. "/b_spec.lua", folder },
        { path = "spec/support/run_specs", env = { SPEC_JOBS = "1" } })
      assert.are.equal(0, status, out)
      local order = {}
      for name in out:gmatch "== %S*/(%l)_spec" do order[#order + 1] = name end
      assert.are.same({ "b", "a", "c" }, order)
      assert.matches("\n3 passed, 0 failed\n$", out)
    end)
  end)

  it("ends the files under way where it is stopped, and says what it has", function()
    host.in_folder(function(folder)
      assert(fs.write(folder .. "/a_spec.lua", "it('fails', error)"))
      -- the runner leads the session; the spec has a process group of its own
      assert(fs.write(folder .. "/b_spec.lua", "it('stops its run', function() " ..
        "os.execute('kill -TERM -$(ps -o sid= -p $$ | tr -d \" \"); exec sleep 300') end)"))
      local began = processes.now()
      local _, out = host.run({ "--wait", "spec/support/run_specs", folder },
        { path = "/usr/bin/setsid", env = { SPEC_JOBS = "1" }, seconds = 250 })
      assert.is_true(processes.now() - began < 250)
      assert.matches("\nfailed:\n== %S*/a_spec.lua\n.*\n0 passed, 1 failed, stopped by a signal\n$", out)
    end)
  end)

  it("ends the files under way where it is interrupted", function()
    host.in_folder(function(folder)
      assert(fs.write(folder .. "/a_spec.lua", "it('stops its run', function() " ..
        "os.execute('kill -INT -$(ps -o sid= -p $$ | tr -d \" \"); exec sleep 300') end)"))
      local began = processes.now()
      host.run({ "--wait", "spec/support/run_specs", folder },
        { path = "/usr/bin/setsid", env = { SPEC_JOBS = "1" }, seconds = 250 })
      assert.is_true(processes.now() - began < 250)
    end)
  end)

  it("counts a file that leaves something in its TMPDIR, other than the records of runs that failed",
    function()
    local status, text = run { left = "it('x', function() os.tmpname() end)",
      failed = "it('x', function() " ..
        "io.open(os.getenv 'TMPDIR' .. '/accel-run-7-ranks-0-to-1.jsonl', 'w') end)" }
    assert.are.equal(1, status)
    assert.matches("left_spec.lua: left in its TMPDIR: lua_%w+", text)
    assert.matches("\n2 passed, 1 failed\n$", text)
  end)

  it("counts what is left in /dev/shm and in the tree, and names what ran then", function()
    local name = "accel-left-by-runner-spec-" .. require("spec.support.processes").own_pid()
    for _, path in ipairs { "/dev/shm/" .. name, name } do
      local status, text = run { quick = "it('x', function() end)",
        leaves = ("it('x', function() io.open(%q, 'w'):close() end)"):format(path) }
      assert(os.remove(path))
      assert.are.equal(1, status)
      assert.matches("\nleft behind: " .. path:gsub("%p", "%%%0") .. ", written while there ran:[^\n]*" ..
        "/leaves_spec.lua", text)
      assert.matches("\n2 passed, 1 failed\n$", text)
    end
  end)
end)

describe("make", function()
  if not io.open "Makefile" then return end

  -- An object that was made under another name would not be made anew when a header changes.
  it("has one name for its folder, however OUT is given", function()
    local pipe = io.popen "pwd"
    local tree = pipe:read "*l"
    pipe:close()
    for _, out in ipairs { "build", tree .. "/build" } do
      local status, text, err = host.run({ "-np", "OUT=" .. out, "help" },
        { path = "make", unset = { "MAKEFLAGS", "MAKELEVEL", "MFLAGS" } })
      assert.are.equal(0, status, err)
      assert.is_truthy(text:find("\nOUT := build\n", 1, true), out)
    end
  end)
end)

describe("make demo and make test", function()
  if not io.open "Makefile" then return end

  it("install what is missing before anything is built, in whatever order that begins", function()
    host.in_folder(function(folder)
      assert(fs.make_dirs(folder .. "/luajit/src")) -- its make is run also where nothing else is
      assert(fs.write(folder .. "/luajit/src/Makefile", "libluajit.a jit/vmdef.lua:;"))
      for file, goal in pairs { ["include/op_attrs.h"] = "demo", ["libax_disk_faults.so"] = "test" } do
        local status, out, err = host.run({ "-n", "-j1", "OUT=" .. folder, folder .. "/" .. file, goal },
          { path = "make", unset = { "MAKEFLAGS", "MAKELEVEL", "MFLAGS" } })
        assert.are.equal(0, status, err)
        local installs = out:find("make deps: installing", 1, true)
        local builds = out:find("-o " .. folder, 1, true)
        assert(installs and builds and installs < builds, file .. ":\n" .. out)
      end
    end)
  end)
end)
