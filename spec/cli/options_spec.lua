-- host/script/main.c, config.c, interp.c, interp_folders.c, interp_signals.c: the command line,
-- where files are found, exit statuses, errors.
local host = require "spec.support.host"
local processes = require "spec.support.processes"
local messages = require "spec.support.messages"

local has, matches = messages.has, messages.matches

-- Runs the host and checks its status; returns stdout, stderr.
local function run(status, arguments, options)
  local got, out, err = host.run(arguments, options)
  assert(got == status, ("status %d, expected %d\nstdout: %s\nstderr: %s"):format(got, status, out, err))
  return out, err
end


describe("a script", function()
  after_each(processes.clean)

  it("gets its arguments in arg and in ...", function()
    local path = processes.script("print(...)\nprint(arg[0], arg[1], arg[2], arg[3], #arg)\nprint(arg[-1])")
    assert.equal(("one\t--two\n%s\tone\t--two\tnil\t2\n%s\n"):format(path, host.path),
      (run(0, { path, "one", "--two" })))
  end)

  it("may have a first line for the shell", function()
    local path = processes.script("#!/usr/bin/env accel-run\nerror('here')")
    local _, err = run(1, { path })
    has(err, ":2: here\n")
    _, err = run(1, { "-" }, { stdin = "#!/usr/bin/env accel-run\nerror('here')" })
    has(err, "stdin:2: here\n")
  end)

  it("that raises prints a traceback to stderr and ends with status 1", function()
    local path = processes.script("local function inner() local x = nil; return x.y end\nlocal y = inner()")
    local out, err = run(1, { path })
    assert.equal("", out)
    matches(err, "^accel%-run: [^\n]*:1: attempt to index local 'x' %(a nil value%)\nstack traceback:\n")
    matches(err, "in function 'inner'\n[^\n]*:2: in main chunk\n")
  end)

  it("ends with the status it asks for", function()
    run(0, { "-e", "os.exit(0)" })
    run(7, { "-e", "os.exit(7)" })
    run(1, { "-e", "os.exit(false)" })
    run(1, { "-e", "error()" })
  end)

  it("that is missing, or no Lua, is a message that names it", function()
    local _, err = run(1, { "no_such_script.lua" })
    has(err, "cannot open no_such_script.lua")
    _, err = run(1, { "--num_processes", "2", "no_such_script.lua" })
    has(err, "cannot open no_such_script.lua")
    _, err = run(1, { processes.script("x = = 1") })
    has(err, ":1: unexpected symbol near '='")
    run(1, { "/" })
  end)

  it("comes from stdin when it is called -, or not at all", function()
    assert.equal("3\t-\targ\n", (run(0, { "-", "arg" }, { stdin = "print(1 + 2, arg[0], ...)" })))
    assert.equal("3\n", (run(0, {}, { stdin = "print(1 + 2)" })))
    assert.equal("", (run(0, {}, { stdin = "" })))
  end)

  it("is run in this process unless several are asked for", function()
    assert.equal("nil\tnil\n", (run(0, { "-e", "print(os.getenv('RANK'), os.getenv('WORLD_SIZE'))" })))
    assert.equal("0 of 1\n",
      (run(0, { "-e",
      "local d = require('accelerate.core').dist; print(d.rank() .. ' of ' .. d.world_size())" })))
  end)

  it("is interrupted by Ctrl-C with a traceback and status 130", function()
    local r = processes.start {
      processes.script("\nio.write('ready\\n') io.flush() while true do os.time() end") }
    r:expect("ready", 10)
    r:signal(processes.SIGINT)
    local status, _, err = r:wait(2)
    assert.equal(130, status)
    has(err, ":2: interrupted\nstack traceback:")
  end)

  it("is interrupted in compiled loops", function()
    local loops = {
      "local i = 0 while true do i = i + 1 end",
      "for i = 1, math.huge do end",
      "local function f(n) return f(n + 1) end f(1)",
      "local t = {} for i = 1, 100 do t[i] = i end local n = 0 while true do for k, " ..
        "v in pairs(t) do n = n + v end end",
      "coroutine.wrap(function() local i = 0 repeat i = i + 1 until i < 0 end)()",
      "local a = require('ffi').new('double[8]') while true do for k = 0, 7 do a[k] = a[k] + k end end",
    }
    for _, loop in ipairs(loops) do
      local r = processes.start { processes.script("\nio.write('ready\\n') io.flush() " .. loop) }
      r:expect("ready", 10)
      processes.let_compute(r.pid, 0.05) -- it is compiled by then
      r:signal(processes.SIGINT)
      local status, _, err = r:wait(5)
      assert.equal(130, status, loop)
      has(err, ":2: interrupted\nstack traceback:")
    end
  end)

  it("that catches the interruption and goes on is ended by the second one", function()
    local r = processes.start {
      processes.script("io.stdout:setvbuf 'no'\nwhile true do pcall(function() io.write 'on\\n' " ..
      "while true do end end) end") }
    r:expect("on\n", 10)
    r:signal(processes.SIGINT)
    r:expect("on\non\n", 10)
    r:signal(processes.SIGINT)
    assert.equal(130, (r:wait(2)))
  end)
end)

describe("the interpreter's options", function()
  it("run -e and -l in order, then the script", function()
    local path = processes.script("print(x, ...)")
    assert.equal("1\n2\ta\n", (run(0, { "-e", "x = 1 print(x)", "-e", "x = x + 1", path, "a" })))
    assert.equal("true\n",
      (run(0, { "-l", "accelerate.utils.class", "-e",
      "print(package.loaded['accelerate.utils.class'] ~= nil)" })))
    assert.equal("5\n", (run(0, { "-eprint(5)" })))
    processes.clean()
  end)

  it("stop at the first that fails", function()
    local out, err = run(1, { "-e", "error('first')", "-e", "print('second')" })
    assert.equal("", out)
    has(err, "(command line):1: first")
    err = select(2, run(1, { "-l", "no.such.module" }))
    has(err, "module 'no.such.module' not found")
  end)

  it("turn LuaJIT's compiler off", function()
    assert.equal("false\n", (run(0, { "-joff", "-e", "print((jit.status()))" })))
    assert.equal("true\n", (run(0, { "-e", "print((jit.status()))" })))
    local _, err = run(1, { "-jnonsense", "-e", "" })
    has(err, "jit.nonsense")
  end)

  it("find the modules that come with LuaJIT", function()
    local _, err = run(0, { "-jv", "-e", "for i = 1, 1000 do end" })
    matches(err, "%[TRACE +1 %(command line%):1 loop%]")
  end)

  it("are those that a tool expects of a Lua interpreter", function()
    local path = processes.script("print(package.path:sub(1, 4), ...)")
    assert.equal("mine\ta\n",
      (run(0, { "-e", "package.path = 'mine;' .. package.path", "-l", "string", "--", path, "a" })))
    processes.clean()
  end)
end)

describe("launch options", function()
  it("may be written with dashes, underscores, = and after launch", function()
    for _, words in ipairs { { "--num_processes", "2" }, { "--num-processes", "2" }, { "--num_processes=2" },
      { "launch", "--num_processes", "2" } } do
      words[#words + 1] = "-e"
      words[#words + 1] = "io.write('x')"
      assert.equal("xx", (run(0, words)))
    end
  end)

  it("that are misspelt are an error that names the nearest", function()
    for given, nearest in pairs { ["--num_proceses"] = "num_processes", ["--num-procs"] = "num_processes",
      ["--stall_timout"] = "stall_timeout",
      ["--cpus"] = "cpu", ["--hlep"] = "help", ["--timeouts=3"] = "timeout", ["--explian"] = "explain",
      ["--num_cpu_threads"] = "num_cpu_threads_per_process" } do
      local _, err = run(2, { given, "x.lua" })
      matches(err, "there is no option " .. given:gsub("=.*", ""):gsub("%-", "_"):gsub("^__", "%%-%%-") ..
        "; the nearest is %-%-" .. nearest .. " ")
    end
    local _, err = run(2, { "-x" })
    has(err, "there is no option -x")
  end)

  it("with a bad value are an error that says what was expected", function()
    for _, case in ipairs {
      { { "--num_processes", "0" }, "%-%-num_processes: expected 1 to 256, got 0" },
      { { "--num_processes", "1000" }, "%-%-num_processes: expected 1 to 256, got 1000" },
      { { "--num_processes", "-1" }, "expected 1 to 256, got %-1" },
      { { "--num_processes", "two" }, "%-%-num_processes: expected a whole number, got 'two'" },
      { { "--num_processes", "1.5" }, "expected a whole number, got '1.5'" },
      { { "--num_processes", "" }, "expected a whole number, got ''" },
      { { "--num_processes", "nan" }, "expected a whole number, got 'nan'" },
      { { "--num_processes" }, "%-%-num_processes needs a value: %-%-num_processes N" },
      { { "--timeout", "soon" }, "%-%-timeout: expected a number of seconds, got 'soon'" },
      { { "--timeout", "0" }, "%-%-timeout: expected 0.1 to 1e%+09, got 0" },
      { { "--cpu=maybe" }, "%-%-cpu: expected true or false, got 'maybe'" },
      { { "-e" }, "%-e needs a piece of Lua code after it" },
      { { "-l" }, "%-l needs the name of a module after it" },
    } do
      local _, err = run(2, case[1])
      matches(err, case[2])
    end
    local _, err = run(2, { "-e", "" }, { env = { ACCELERATE_NUM_PROCESSES = "many" } })
    has(err, "environment variable ACCELERATE_NUM_PROCESSES: expected a whole number, got 'many'")
  end)

  it("of switches in variables are Accelerate's words, in any case", function()
    for words, value in pairs { ["y YES t True oN 1"] = "true", ["n No F false OFF 0"] = "false" } do
      for word in words:gmatch "%S+" do
        local out = run(0, { "--explain" }, { env = { ACCELERATE_USE_CPU = word } })
        matches(out, "\ncpu +" .. value .. " +environment variable ACCELERATE_USE_CPU\n")
      end
    end
    local _, err = run(2, { "--explain" }, { env = { ACCELERATE_USE_CPU = "2" } })
    has(err, "environment variable ACCELERATE_USE_CPU: expected true or false, got '2'")
  end)

  it("in variables that are nearly ours are named, once, and those of Accelerate are not", function()
    local _, err = run(0, { "--num_processes", "2", "-e", "" },
      { env = { ACCELERATE_NUM_PROCESS = "3", ACCELERATE_MIXEDPRECISION = "bf16" } })
    local line = "environment variable ACCELERATE_%s is not known and has no effect; the nearest is " ..
      "ACCELERATE_%s\n"
    matches(err, line:format("NUM_PROCESS", "NUM_PROCESSES"))
    matches(err, line:format("MIXEDPRECISION", "MIXED_PRECISION"))
    assert.equal(2, select(2, err:gsub("\n", "")), err)
    _, err = run(0, { "-e", "" }, { env = { ACCELERATE_USE_XPU = "0", ACCELERATE_DYNAMO_MODE = "default",
      ACCELERATE_DOWNCAST_BF16 = "no", ACCELERATE_MINE = "1", ACCELERATE_NUM_PROCESSES = "1" } })
    assert.equal("", err)
    _, err = run(0, { "--quiet", "-e", "" }, { env = { ACCELERATE_NUM_PROCESS = "3" } })
    assert.equal("", err)
  end)

  it("in capitals, or variables in small letters, are named as they are written", function()
    has(select(2, run(2, { "--NUM_PROCESSES", "2" })),
      "there is no option --NUM_PROCESSES; the nearest is " ..
      "--num_processes")
    local _, err = run(0, { "-e", "" }, { env = { ACCELERATE_mixed_precision = "bf16" } })
    has(err, "ACCELERATE_mixed_precision is not known and has no effect; the nearest is " ..
      "ACCELERATE_MIXED_PRECISION")
    local _, long = run(2, { "--" .. ("x"):rep(400) })
    has(long, "there is no option --xxx")
    assert.is_nil(long:find("the nearest", 1, true))
  end)

  it("may be a word out of a few, which reaches the script's Accelerator", function()
    local code = { "-e", 'print(require("accelerate").Accelerator().mixed_precision)' }
    assert.equal("bf16\n", (run(0, { "--mixed_precision", "bf16", unpack(code) })))
    assert.equal("bf16\n", (run(0, code, { env = { ACCELERATE_MIXED_PRECISION = "bf16" } })))
    assert.equal("no\n",
      (run(0, { "--mixed_precision", "no", unpack(code) },
      { env = { ACCELERATE_MIXED_PRECISION = "bf16" } })))
    local _, err = run(2, { "--mixed_precision", "bf", unpack(code) })
    has(err, "accel-run: --mixed_precision: expected no|fp16|bf16|fp8, got 'bf'")
  end)

  it("are explained with their origin", function()
    local out = run(0, { "--num_processes", "2", "--explain" },
      { env = { ACCELERATE_TIMEOUT = "60", ACCELERATE_USE_CPU = "yes", OMP_NUM_THREADS = "3" } })
    matches(out, "num_processes +2 +%-%-num_processes\n")
    matches(out, "num_cpu_threads_per_process +3 +environment variable OMP_NUM_THREADS\n")
    matches(out, "\ncpu +true +environment variable ACCELERATE_USE_CPU\n")
    matches(out, "\ntimeout +60 +environment variable ACCELERATE_TIMEOUT\n")
    matches(out, "\nstall_timeout +30 +default\n")
    out = run(0, { "--timeout", "5", "--explain" }, { env = { ACCELERATE_TIMEOUT = "60" } })
    matches(out, "\ntimeout +5 +%-%-timeout\n")
  end)

  it("are listed by --help, each with its variable", function()
    local out = run(0, { "--help" })
    for _, word in ipairs { "usage: accel%-run", "%-%-num_processes N\n",
      "ACCELERATE_NUM_PROCESSES; default auto", "%-%-stall_timeout S", "%-%-explain", "%-e CODE" } do
      matches(out, word)
    end
    assert.equal(out, (run(0, { "-h" })))
    matches(run(0, { "--version" }), "^accel %d+%.%d+%.%d+ %(LuaJIT 2%.1")
  end)

  it("reach the script where it is the script's business", function()
    assert.equal("true\n", (run(0, { "--cpu", "-e", "print(os.getenv('ACCELERATE_USE_CPU'))" })))
    assert.equal("4\n",
      (run(0, { "--num_cpu_threads_per_process", "4", "-e", "print(os.getenv('OMP_NUM_THREADS'))" })))
  end)

  describe("without --num_processes", function()
    -- A copy of the host with the file of a CUDA backend, and the nodes of `gpus` GPUs.
    local function with_gpus(gpus, words, env)
      local out, err
      host.in_folder(function(folder)
        local lua = assert(package.searchpath("accelerate.utils.class", package.path)):match(
          "^(.*)/accelerate/")
        assert(os.execute(("cd '%s' && mkdir build && cp '%s' build/accel-run && ln -s '%s' lua"):format(
          folder,
          host.path, lua)))
        for _, name in ipairs { "build/libax_cuda.so", "nvidiactl", "nvidia-uvm", "train.lua" } do
          assert(io.open(folder .. "/" .. name, "w")):close()
        end
        for k = 0, gpus - 1 do assert(io.open(folder .. "/nvidia" .. k, "w")):close() end
        local f = assert(io.open(folder .. "/train.lua", "w"))
        f:write "print(require('accelerate.core').dist.world_size())"
        f:close()
        env = env or {}
        env.ACCEL_DEVICE_NODES = folder
        words[#words + 1] = folder .. "/train.lua"
        out, err = run(0, words, { env = env, path = folder .. "/build/accel-run" })
      end)
      return out, err
    end

    it("a script gets a rank for each visible GPU, in one line", function()
      local out, err = with_gpus(3, {})
      assert.equal(("3\n"):rep(3), out)
      assert.equal("accel-run: 3 ranks, one for each of the 3 visible GPUs (--num_processes N sets it)\n",
        err)
      for visible, ranks in pairs { ["0,2"] = 2, ["1,7,0"] = 1, ["GPU-2a,GPU-3b"] = 2, ["-1"] = 1,
        [""] = 1 } do
        out = with_gpus(3, {}, { CUDA_VISIBLE_DEVICES = visible })
        assert.equal((ranks .. "\n"):rep(ranks), out, visible)
      end
      matches(with_gpus(2, { "--explain" }), "num_processes +2 +default %(2 visible GPUs%)\n")
    end)

    it("it gets one where the user wants one, or where there is none", function()
      for _, words in ipairs { { "--num_processes", "1" }, { "--cpu" } } do
        local out, err = with_gpus(3, words)
        assert.equal("1\n", out)
        assert.equal("", err)
      end
      local out, err = with_gpus(0, {})
      assert.equal("1\n", out)
      assert.equal("", err)
      assert.equal("2\n2\n", (with_gpus(3, { "--gpu_ids", "0,2" }))) -- as many as are named
    end)
  end)

  it("refuse a prompt on several machines", function()
    local _, err = run(2, { "-i", "--num_processes", "2", "--num_machines", "2", "--machine_rank", "0",
      "--main_process_ip", "127.0.0.1", "--cpu", "x.lua" })
    matches(err, "--num_machines: a prompt's ranks are all on one machine; give a script for several")
  end)
end)

describe("a process that another launcher started", function()
  it("is told what is missing, instead of training alone many times over", function()
    for _, case in ipairs {
      { { WORLD_SIZE = "4", RANK = "2" },
        "WORLD_SIZE=4 and RANK=2 in|torchrun|%-%-num_processes 4 script.lua" },
      { { OMPI_COMM_WORLD_SIZE = "2", OMPI_COMM_WORLD_RANK = "0" }, "mpirun" },
      { { SLURM_STEP_NUM_TASKS = "8", SLURM_PROCID = "3" }, "srun" },
    } do
      local _, err = run(2, { "-e", "print('ran')" }, { env = case[1] })
      for word in case[2]:gmatch("[^|]+") do
        if not word:find(" in$") then matches(err, word) end
      end
    end
  end)

  it("runs when it is the only one, or belongs to one of our ranks", function()
    assert.equal("ran\n", (run(0, { "-e", "print('ran')" }, { env = { WORLD_SIZE = "1", RANK = "0" } })))
    local inner = ("%s -e \"io.write('inner')\""):format(host.path)
    assert.equal("innerinner",
      (run(0, { "--num_processes", "2", "-e", ("assert(os.execute(%q))"):format(inner) })))
  end)
end)

describe("files", function()
  -- A copy of the host in `folder`/bin, say; the Lua files are linked.
  local function copy(folder, bin, lua)
    assert(os.execute(("mkdir -p '%s/%s' '%s/%s' && cp '%s' '%s/%s/accel-run'"):format(folder, bin, folder,
      lua:match("(.*)/") or ".", host.path, folder, bin)))
    local source = assert(package.searchpath("accelerate.utils.class", package.path)):match(
      "^(.*)/accelerate/")
    assert(os.execute(("ln -s '%s' '%s/%s'"):format(source, folder, lua)))
    local pipe = io.popen(("cd / && '%s/%s/accel-run' -e 'print((package.path:match(\"^[^;]*\"))) " ..
      "print(require(\"accelerate.utils.class\") ~= nil)' 2>&1"):format(folder, bin))
    local text = pipe:read("*a")
    pipe:close()
    return text
  end

  it("are found in a build tree, after an installation and in a moved folder", function()
    for bin, lua in pairs { bin = "share/accel/lua", build = "lua", ["build/asan"] = "lua", ["."] = "lua" } do
      host.in_folder(function(folder)
        matches(copy(folder, bin, lua), "/%?%.lua\ntrue\n$")
      end)
    end
  end)

  it("that are missing are said to be missing where they were looked for", function()
    host.in_folder(function(folder)
      assert(os.execute(("cp '%s' '%s/accel-run'"):format(host.path, folder)))
      local pipe = io.popen(("'%s/accel-run' -e 'require \"accelerate\"' 2>&1"):format(folder))
      local text = pipe:read("*a")
      pipe:close()
      has(text, "module 'accelerate' not found")
      matches(text, "no file '" .. folder:gsub("%p", "%%%0") .. "/lua/accelerate.lua'")
    end)
  end)

  it("do not appear as globals in a script", function()
    assert.equal("nil\tnil\tnil\tnil\n", (run(0, { "-e", "print(accelerate, nn, tensor, core)" })))
  end)
end)

describe("starting", function()
  it("has a LuaJIT that honours metamethods of # and pairs, and room for compiled code", function()
    assert.equal("3\ta\n", (run(0, { "-e", "local t = setmetatable({}, { __len = function() return 3 end, " ..
      "__pairs = function() return function(_, k) if not k then return 'a' end end end }) for k in " ..
      "pairs(t) do print(#t, k) end" })))
    assert.equal("true\n", (run(0, { "-e", "print(require('ffi').abi('gc64'))" })))
    if not io.open("/proc/self/maps") then return pending("needs /proc, to see what is mapped") end
    local out = run(0,
      { "-joff", "-e", "for line in io.lines('/proc/self/maps') do io.write(line, '\\n') end" })
    local from, to = ("\n" .. out):match("\n(%x+)%-(%x+) r%-xp 00000000 00:00 0 *\n")
    -- taken before anything runs
    assert.equal(4096 * 1024, from and tonumber(to, 16) - tonumber(from, 16), out)
  end)

  it("loads no kernels, no OpenMP and no line editor", function()
    if not io.open("/proc/self/maps") then return pending("needs /proc, to see what is mapped") end
    local out = run(0, { "-e", "for line in io.lines('/proc/self/maps') do io.write(line, '\\n') end" })
    has(out, "accel-run")
    for _, name in ipairs { "libluajit", "libax_cpu", "libgomp", "libdnnl", "libedit" } do
      assert.is_nil(out:find(name), name)
    end
  end)
end)
