-- host/settings/config_file.c, options.c, config.c: the configuration file, and launch options
-- beside it.
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local messages = require "spec.support.messages"

local has = messages.has

local PRINT = [[print(os.getenv "RANK", os.getenv "WORLD_SIZE", os.getenv "ACCELERATE_MIXED_PRECISION",
  os.getenv "ACCELERATE_USE_CPU", os.getenv "ACCELERATE_DYNAMO_BACKEND", os.getenv "ACCELERATE_DEBUG_MODE")]]

-- Runs words with files in a fresh folder; checks the status; returns stdout, stderr, with the
-- folder as HERE.
local function run(status, files, words, env)
  local out, err
  host.in_folder(function(folder)
    files["print.lua"] = files["print.lua"] or PRINT
    for name, text in pairs(files) do
      assert(fs.make_dirs((folder .. "/" .. name):match "^(.*)/"))
      assert(fs.write(folder .. "/" .. name, text))
    end
    local all = { HF_HOME = folder .. "/hf" }
    for name, value in pairs(env or {}) do all[name] = (value:gsub("HERE", folder)) end
    local got
    got, out, err = host.run(words, { env = all, folder = folder })
    out, err = out:gsub(folder:gsub("%p", "%%%0"), "HERE"), err:gsub(folder:gsub("%p", "%%%0"), "HERE")
    assert(got == status, ("status %d, expected %d\nstdout: %s\nstderr: %s"):format(got, status, out, err))
  end)
  return out, err
end

local function config(text) return { ["c.yaml"] = text } end
local function with(text, status)
  return run(status or 0, config(text), { "--config_file", "c.yaml", "print.lua" })
end

describe("a configuration file", function()
  it("is found where Accelerate keeps it", function()
    local text = "distributed_type: 'NO'\nmixed_precision: bf16\n"
    for _, case in ipairs {
      { "hf/accelerate/default_config.yaml", {} },
      { "cache/huggingface/accelerate/default_config.yaml", { HF_HOME = "", XDG_CACHE_HOME = "HERE/cache" } },
      { "home/.cache/huggingface/accelerate/default_config.yaml",
        { HF_HOME = "", XDG_CACHE_HOME = "", HOME = "HERE/home" } },
      { "home/x/accelerate/default_config.yaml", { HF_HOME = "~/x", HOME = "HERE/home" } },
      { "named.yaml", { ACCELERATE_CONFIG_FILE = "named.yaml" } },
    } do
      local out = run(0, { [case[1]] = text }, { "--explain" }, case[2])
      assert.is_truthy(out:find("mixed_precision +bf16 +[^\n]*" .. case[1]:gsub("%p", "%%%0") ..
        ":2: mixed_precision\n"), out)
    end
    -- nothing is read: an empty name, --cpu, another place
    for _, case in ipairs { { {}, { ACCELERATE_CONFIG_FILE = "" } }, { { "--cpu" }, {} },
      { {}, { HF_HOME = "HERE/other" } } } do
      local words = { unpack(case[1]) }
      words[#words + 1] = "--explain"
      local out = run(0, { ["hf/accelerate/default_config.yaml"] = text }, words, case[2])
      assert.is_truthy(out:find "mixed_precision +no +default\n", out)
      assert.is_truthy(out:find "config_file +none +default\n", out)
    end
  end)

  it("has less weight than the environment, and that less than an option", function()
    local files =
      config "distributed_type: MULTI_CPU\nnum_processes: 3\nmixed_precision: bf16\ntimeout: 7.5\n"
    local words = { "--config_file", "c.yaml", "--num_processes", "2", "--explain" }
    local out = run(0, files, words, { ACCELERATE_NUM_PROCESSES = "4", ACCELERATE_MIXED_PRECISION = "fp16" })
    for _, pattern in ipairs { "num_processes +2 +%-%-num_processes\n",
      "mixed_precision +fp16 +environment variable ACCEL",
      "timeout +7.5 +c.yaml:4: timeout\n", "cpu +true +c.yaml:1: distributed_type\n",
      "config_file +c.yaml +%-%-config_file\n",
      "stall_timeout +30 +default\n" } do
      assert.is_truthy(out:find(pattern), out)
    end
  end)

  it("starts ranks that see its settings", function()
    local out = with("distributed_type: MULTI_CPU\nnum_processes: 2\nmixed_precision: bf16\n" ..
      "use_cpu: yes\ndebug: on\n")
    assert.are.same({ "0\t2\tbf16\ttrue\tnil\ttrue", "1\t2\tbf16\ttrue\tnil\ttrue" },
      messages.sorted_lines(out))
    -- what it does not say keeps the environment's value
    out = run(0, config "distributed_type: NO\n", { "--config_file", "c.yaml", "print.lua" },
      { ACCELERATE_DYNAMO_BACKEND = "x" })
    assert.are.equal("nil\tnil\tnil\tnil\tx\tnil\n", out)
  end)

  it("may be JSON by its ending, or JSON as YAML has it", function()
    local text = '{\n  "distributed_type": "MULTI_CPU",\n  "num_processes": 2,\n' ..
      '  "mixed_precision": "bf16"\n}\n'
    for _, name in ipairs { "c.json", "c.yaml" } do
      local out = run(0, { [name] = text }, { "--config_file", name, "print.lua" })
      assert.are.same({ "0\t2\tbf16\ttrue\tnil\tnil", "1\t2\tbf16\ttrue\tnil\tnil" },
        messages.sorted_lines(out))
    end
    local _, err = run(2, { ["c.json"] = '{"use_cpu": no}' }, { "--config_file", "c.json", "print.lua" })
    has(err, "accel-run: c.json:1: 'no': JSON has")
  end)

  it("is read as it is: YAML 1.1, old keys, nested keys without their prefix", function()
    -- unquoted no is a word for mixed_precision and false for a switch
    assert.are.equal("nil\tnil\tno\tfalse\tnil\tnil\n",
      (with "distributed_type: NO\nmixed_precision: no\nuse_cpu: NO\n"))
    assert.are.equal("nil\tnil\tfp16\tnil\tnil\tnil\n", (with "distributed_type: 'NO'\nfp16: true\n"))
    assert.are.equal("nil\tnil\tbf16\tnil\tnil\tnil\n",
      (with "distributed_type: 'NO'\nfp16: true\nmixed_precision: bf16\n"))
    for _, text in ipairs { "dynamo_backend: CUDAGRAPHS\n", "dynamo_config: {dynamo_backend: CUDAGRAPHS}\n",
      "dynamo_config:\n  backend: CUDAGRAPHS\n  mode: default\n" } do
      assert.are.equal("nil\tnil\tnil\tnil\tCUDAGRAPHS\tnil\n", (with("distributed_type: 'NO'\n" .. text)))
    end
    local out = run(0,
      config "distributed_type: MULTI_CPU\nnum_processes: 0x3\nmain_process_port: null\nmachine_rank: 0\n",
      { "--config_file", "c.yaml", "--explain" })
    assert.is_truthy(out:find "num_processes +3 +c.yaml:2: num_processes\n", out)
    assert.is_truthy(out:find "main_process_port +29500 +default\n", out)
  end)

  it("lists keys that are not known, each with the nearest", function()
    local _, short = with("distributed_type: 'NO'\nnum_procs: 2\n", 2)
    has(short, "  line 2: num_procs; did you mean num_processes?")
    local _, err = with("distributed_type: 'NO'\nnum_proceses: 2\nwhatever: 1\nuse_cpus: false\n", 2)
    assert.are.equal("accel-run: c.yaml has keys that are not known (take them out, or correct them):\n" ..
      "  line 2: num_proceses; did you mean num_processes?\n  line 3: whatever\n  line 4: use_cpus; did " ..
      "you mean use_cpu?\n", err)
  end)

  it("names file, line and key of what is wrong", function()
    for text, message in pairs {
      ["distributed_type: 'NO'\nmixed_precision: bf17\n"] =
        "c.yaml:2: mixed_precision: expected no|fp16|bf16|fp8, got 'bf17'",
      ["distributed_type: MULTI_CPU\nnum_processes: two\n"] =
        "c.yaml:2: num_processes: expected a whole number, got 'two'",
      ["distributed_type: 'NO'\nuse_cpu: maybe\n"] = "c.yaml:2: use_cpu: expected true or false, got 'maybe'",
      ["distributed_type: 'NO'\ngpu_ids: [0, 1]\n"] = "c.yaml:2: gpu_ids: expected one value, got a list",
      ["num_processes: 2\n"] = "c.yaml: the key distributed_type is missing",
      ["distributed_type: MULTI_CPU\n"] =
        "c.yaml:1: distributed_type MULTI_CPU, and num_processes is missing",
      ["distributed_type: MULTI_CPU\nnum_processes: -1\n"] =
        "c.yaml:2: distributed_type MULTI_CPU, and num_processes is -1",
      ["distributed_type: MULTI_NPU\nnum_processes: 2\n"] =
        "got 'MULTI_NPU'; there is no backend for such devices",
      ["a: [1\n"] = "c.yaml:2: did not find expected ',' or ']'",
      ["- 1\n"] = "c.yaml: expected keys with values, got a list",
      [""] = "c.yaml: expected keys with values, got nothing",
      ["distributed_type: 'NO'\nmixed_precision: bf16\nmixed_precision: 'no'\n"] =
        "c.yaml:3: the key mixed_precision is there twice",
    } do
      local _, err = with(text, 2)
      has(err, message)
    end
    local _, err = run(2, {}, { "--config_file", "none.yaml", "print.lua" })
    has(err, "cannot read the configuration none.yaml: No such file or directory")
  end)

  it("that chooses what is not there is refused with the reason", function()
    for text, message in pairs {
      ["distributed_type: MEGATRON_LM\n"] = "distributed_type: MEGATRON_LM: Megatron-LM is not there",
      ["distributed_type: XLA\n"] = "distributed_type: XLA: there is no backend for TPUs",
      ["compute_environment: AMAZON_SAGEMAKER\n"] =
        "c.yaml:1: compute_environment: AMAZON_SAGEMAKER: jobs on SageMaker",
      ["distributed_type: MULTI_CPU\nnum_processes: 2\nnum_machines: 2\nmpirun_config:\n" ..
        "  mpirun_hostfile: /nowhere/hosts\n"] =
        "c.yaml:5: mpirun_hostfile: /nowhere/hosts cannot be read: No such file",
      ["distributed_type: MULTI_GPU\nnum_processes: 2\nparallelism_config:\n\n tp_size: 2"] =
        "c.yaml:5: tp_size: 2: tensor, context and sequence parallelism are not there yet",
    } do
      local _, err = with(text, 2)
      has(err, message)
    end
    -- and what is not chosen does not matter
    with("distributed_type: 'NO'\nfsdp_config: {whatever: 1}\ndeepspeed_config: {zero_stage: 3}\n" ..
      "tpu_env: []\ndowncast_bf16: 'no'\n")
  end)

  it("is for scripts: a prompt, -e and what a rank starts are one process", function()
    local files = { ["hf/accelerate/default_config.yaml"] = "distributed_type: MULTI_CPU\nnum_processes: " ..
      "2\nmixed_precision: bf16\n" }
    assert.are.equal("nil\tnil\tbf16\ttrue\tnil\tnil\n", (run(0, files, { "-e", PRINT })))
    local nested = ("os.execute [['%s' print.lua]]"):format(host.path)
    files["nested.lua"] = nested
    local out = run(0, files, { "nested.lua" })
    assert.are.same({ "0\t2\tbf16\ttrue\tnil\tnil", "1\t2\tbf16\ttrue\tnil\tnil" },
      messages.sorted_lines(out))
  end)

  it("that is not distributed starts one rank, and says so where it names more", function()
    local out, err = with "distributed_type: NO\nnum_processes: 4\n"
    assert.are.equal("nil\tnil\tnil\tnil\tnil\tnil\n", out)
    assert.are.equal("accel-run: c.yaml:1: distributed_type NO starts one rank, " ..
      "and num_processes 4 is not used\n", err)
  end)
end)

-- The rows of host/settings/config_keys.def: { map, name, use, why }.
local function rows()
  local list = {}
  local ROW = 'KEY%(([%w_]+),%s*([%w_]+),%s*([%u_1]+),%s*"([^"\n]*)"%)'
  for map, name, use, why in fs.read("host/settings/config_keys.def"):gmatch(ROW) do
    list[#list + 1] = { map = map, name = name, use = use, why = why }
  end
  return list
end

local PREFIXES = { dynamo_config = "dynamo_", parallelism_config = "parallelism_config_" }
local VALUES = { distributed_type = "MULTI_CPU", num_processes = 2, compute_environment = "LOCAL_MACHINE",
  rdzv_backend = "static", mixed_precision = "bf16", fp16 = "true", gpu_ids = "all", num_machines = 1,
  machine_rank = 0, main_process_port = 29501, main_process_ip = "127.0.0.1", backend = "CUDAGRAPHS",
  dynamo_backend = "'no'", mpirun_hostfile = "null", same_network = "true", debug = "true",
  use_cpu = "true", enable_cpu_affinity = "true" }

-- A file with the key, and what `more` has.
local function file_with(row, more)
  local lines = { more or "" }
  for _, line in ipairs { "distributed_type: MULTI_CPU", "num_processes: 2" } do
    local key = line:match "^[%w_]+"
    if row.name ~= key and not (more or ""):find(key, 1, true) then lines[#lines + 1] = line end
  end
  local value = VALUES[row.name] or (row.name:find "_config$" and "{}") or 2
  if row.map == "top" or row.map == "sagemaker" then
    if not (more or ""):find(row.name .. ":", 1, true) then lines[#lines + 1] = row.name .. ": " .. value end
  else
    lines[#lines + 1] = ("%s:\n  %s%s: %s"):format(row.map, PREFIXES[row.map] or "", row.name, value)
  end
  return table.concat(lines, "\n") .. "\n"
end

describe("each key that Accelerate has written", function()
  local WORDS = { "--config_file", "c.yaml", "-e", "print 'runs'" }

  it("has its row once", function()
    local seen, uses = {}, {}
    for _, row in ipairs(rows()) do
      local key = row.map .. "." .. row.name
      assert.is_nil(seen[key], key)
      seen[key], uses[row.use] = true, true
    end
    for _, key in ipairs { "top.ipex_config", "ipex_config.ipex_enabled", "top.deepspeed_config",
      "fp8_config.optimization_level", "tp_config.tp_size", "fp8_config.amax_history_length",
      "sagemaker.region" } do
      assert.is_true(seen[key], key)
    end
    for _, use in ipairs { "DONE", "REFUSED", "ABOVE_1", "NOTED", "UNUSED" } do
      assert.is_true(uses[use], use)
    end
  end)

  for _, row in ipairs(rows()) do
    local name = row.map .. "." .. row.name
    if row.use == "DONE" or row.use == "UNUSED" then
      it(name .. " is read without a word", function()
        local out, err = run(0, config(file_with(row)), WORDS)
        assert.same({ "runs\n", "" }, { out, err })
      end)
    elseif row.use == "NOTED" then
      it(name .. " has no effect, which a line says", function()
        local out, err = run(0, config(file_with(row)), WORDS)
        assert.equal("runs\n", out)
        has(err, row.name .. " has no effect: " .. row.why .. "\n")
      end)
    elseif row.use == "ABOVE_1" then
      it(name .. " is refused above 1", function()
        local _, err = run(2, config(file_with(row)), WORDS)
        has(err, row.name .. ": 2: tensor, context and sequence parallelism are not there yet")
        run(0, config((file_with(row):gsub(": 2\n$", ": 1\n"))), WORDS)
      end)
    else
      it(name .. " is left alone, and what chooses it is refused", function()
        if row.map ~= "sagemaker" then
          local out, err = run(0, config(file_with(row)), WORDS)
          assert.same({ "runs\n", "" }, { out, err })
        end
        local chosen = config(file_with(row, row.why))
        local _, err = run(2, chosen, WORDS)
        has(err, row.why)
      end)
    end
  end

  it("is known to config update, which takes out what newer versions have no more", function()
    local text = "distributed_type: MULTI_CPU\nipex_config:\n  ipex: true\ntp_config:\n  tp_size: 2\n"
    host.in_folder(function(folder)
      assert(fs.write(folder .. "/c.yaml", text))
      assert.equal(0, (host.run({ "config", "update", "--config_file", folder .. "/c.yaml" })))
      local written = fs.read(folder .. "/c.yaml")
      assert.is_nil(written:find("ipex", 1, true))
      has(written, "parallelism_config_tp_size: 2")
    end)
  end)

  it("distributed_type must be one that there is, in config update, too", function()
    local _, err = run(1, config "distributed_type: MULTI_CPUS\n",
      { "config", "update", "--config_file", "c.yaml" })
    has(err, "c.yaml: distributed_type: expected NO, MULTI_CPU, ")
    has(err, "got 'MULTI_CPUS'; did you mean MULTI_CPU?")
  end)

  it("in a map, unknown ones bring a line, and a map is expected", function()
    local _, err = run(0, config "distributed_type: 'NO'\ndynamo_config:\n  dynamo_bakend: INDUCTOR\n", WORDS)
    has(err, "c.yaml:3: dynamo_config: the key dynamo_bakend is not known, and has no effect\n")
    _, err = run(2, config "distributed_type: 'NO'\nmpirun_config: hosts\n", WORDS)
    has(err, "c.yaml:2: mpirun_config: expected keys with values, got ")
  end)
end)

describe("a configuration whose aliases stand for very many values", function()
  local LAUGHS = { "distributed_type: FSDP", "fsdp_config: { a0: &a0 [x, x, x, x, x, x, x, x, x, x]" }
  for k = 1, 9 do LAUGHS[#LAUGHS + 1] = (", a%d: &a%d [" .. ("*a%d, "):rep(9) .. "*a%d]"):format(k, k, k - 1,
    k - 1, k - 1, k - 1, k - 1, k - 1, k - 1, k - 1, k - 1, k - 1) end
  local text = LAUGHS[1] .. "\n" .. table.concat(LAUGHS, "", 2) .. "}\n"

  for _, words in ipairs { { "to-fsdp2", "--overwrite" }, { "config", "update" } } do
    it("is refused by " .. table.concat(words, " "), function()
      words[#words + 1], words[#words + 2] = "--config_file", "c.yaml"
      local _, err = run(1, config(text), words)
      has(err, "c.yaml: it stands for more than 10000 values, with its aliases written out\n")
    end)
  end
end)

describe("launch options of Accelerate", function()
  local NAMES = { "BACKEND", "MARGIN", "INTERVAL", "FORMAT", "AMAX_HISTORY_LEN", "AMAX_COMPUTE_ALGO",
    "OVERRIDE_FPROP", "OVERRIDE_DGRAD", "OVERRIDE_WGRAD", "USE_AUTOCAST_DURING_EVAL", "OPT_LEVEL",
    "PAD_INNER_DIM", "ENABLE_FSDP_FLOAT8_ALL_GATHER" }
  local SHOW = "for _, name in ipairs { '" .. table.concat(NAMES, "', '") .. "' } do " ..
    "io.write(tostring(os.getenv('ACCELERATE_FP8_' .. name)), ' ') end print()"

  it("of FP8 reach the ranks", function()
    local out = run(0, {}, { "--mixed_precision", "fp8", "--fp8_backend", "te", "--fp8_margin", "-2",
      "--fp8_interval=3", "--fp8_format", "e4m3", "--fp8_amax_history_len", "16", "--fp8_amax_compute_algo",
      "max", "--fp8_override_linear_precision", "false,False,true", "--fp8_use_autocast_during_eval",
      "--fp8_opt_level", "O1", "--fp8_pad_inner_dim", "false", "--fp8_enable_fsdp_float8_all_gather", "false",
      "-e", SHOW })
    assert.equal("te -2 3 e4m3 16 max false false true true O1 false false \n", out)
    out = run(0, {}, { "--mixed_precision", "fp8", "-e", SHOW })
    assert.equal(("nil "):rep(#NAMES) .. "\n", out)
    local _, err = run(2, {}, { "--mixed_precision", "fp8", "--fp8_override_linear_precision", "true,false",
      "-e",
      SHOW })
    has(err, "--fp8_override_linear_precision: expected three of true and false, such as false,false,true")
    _, err = run(2, {}, { "--mixed_precision", "fp8", "--fp8_format", "E3M4", "-e", SHOW })
    has(err, "--fp8_format: expected HYBRID|E4M3|E5M2, got 'E3M4'")
  end)

  it("of FP8 are keys of fp8_config, which counts with mixed_precision fp8 alone", function()
    local text = "distributed_type: 'NO'\nmixed_precision: %s\nfp8_config:\n  backend: TE\n  margin: 1\n" ..
      "  fp8_format: HYBRID\n  amax_history_length: 8\n  amax_compute_algorithm: max\n" ..
      "  override_linear_precision: [false, true, false]\n  use_autocast_during_eval: true\n"
    local words = { "--config_file", "c.yaml", "-e", SHOW }
    local out, err = run(0, config(text:format "fp8"), words)
    assert.equal("TE 1 nil HYBRID 8 max false true false true nil nil nil \n", out)
    assert.equal("", err)
    out, err = run(0, config(text:format "bf16"), words)
    assert.same({ ("nil "):rep(#NAMES) .. "\n", "" }, { out, err })
    local _, wrong = run(2, config((text:gsub("margin: 1", "margin: much")):format "fp8"), words)
    has(wrong, "c.yaml:5: margin: expected a whole number, got 'much'")
  end)

  it("for what is not there are refused with the reason, or have no effect, which a line says", function()
    for word, message in pairs {
      ["--use_megatron_lm"] = "Megatron-LM is not there", ["--tpu"] = "no backend for TPUs" } do
      local _, err = run(2, {}, { word, "print.lua" })
      has(err, "accel-run: " .. word:gsub("(%w)%-", "%1_") .. ": ")
      has(err, message)
    end
    local out, err = run(0, {}, { "--fsdp_version", "2", "--zero_stage=3", "--dynamo_mode", "default",
      "--downcast_bf16",
      "--rdzv_conf", "timeout=5", "--fp8_backend", "te", "print.lua" })
    assert.are.equal("nil\tnil\tnil\tnil\tnil\tnil\n", out)
    for _, line in ipairs { "--fsdp_version has no effect without --use_fsdp\n",
      "--zero_stage has no effect without --use_deepspeed\n",
      "--dynamo_mode has no effect: there is no compiler of graphs",
      "--downcast_bf16 has no effect without --tpu\n",
      "--rdzv_conf has no effect: the machines meet",
      "--fp8_backend has no effect without --mixed_precision fp8\n" } do
      has(err, "accel-run: " .. line)
    end
    local _, wrong = run(2, {}, { "--zero_stage" })
    has(wrong, "accel-run: --zero_stage needs a value")
  end)

  it("of engines that are not there are each known, and a line says that they have no effect", function()
    local words, names = {}, {}
    for line in io.lines "host/settings/foreign.def" do
      local name, value, engine = line:match "^FOREIGN%(([%w_]+), (%a+), ([%w_]+)%)"
      if name and name:find "^use_" == nil and name ~= "tpu" then
        names[#names + 1] = name
        words[#words + 1] = "--" .. name
        if value == "true" then words[#words + 1] = "1" end
        assert.is_truthy(engine)
      end
    end
    assert.is_true(#names > 45)
    words[#words + 1] = "print.lua"
    local out, err = run(0, {}, words)
    assert.are.equal("nil\tnil\tnil\tnil\tnil\tnil\n", out)
    for _, name in ipairs(names) do has(err, "accel-run: --" .. name .. " has no effect") end
  end)

  it("name the nearest sensible one when there is none of the name", function()
    for word, near in pairs { multi_gpus = "multi_gpu", nproc_per_node = "num_processes", gpus = "gpu_ids",
      node_rank = "machine_rank",
      use_fsdpp = "use_fsdp", conf_file = "config_file" } do
      local _, err = run(2, {}, { "--" .. word, "print.lua" })
      has(err, ("there is no option --%s; the nearest is --%s ("):format(word, near))
    end
    for _, word in ipairs { "foo", "zzzzzz", "x" } do
      local _, err = run(2, {}, { "--" .. word, "print.lua" })
      assert.are.equal(("accel-run: there is no option --%s (accel-run --help lists them)\n"):format(word),
        err)
    end
  end)

  it("exclude one another where they must", function()
    for _, case in ipairs {
      { { "--cpu", "--multi_gpu" }, "--cpu and --multi_gpu: give one of them" },
      { { "--multi_gpu", "--num_processes", "1" },
        "--multi_gpu: expected at least 2 ranks, got 1 (--num_processes)" },
      { { "--multi_gpu" },
        "--multi_gpu: no GPU is visible here, so there is nothing to take the number of " ..
        "ranks from (accel-run env says why; --num_processes N starts ranks on the CPU)" },
      { { "--multi_gpu", "--gpu_ids", "1" },
        "--gpu_ids: 1 names one GPU, and --multi_gpu needs at least two" },
      { { "--module", "--no_python" }, "--module and --no_python: give one of them" },
    } do
      case[1][#case[1] + 1] = "print.lua"
      local _, err = run(2, {}, case[1])
      has(err, case[2])
    end
  end)

  it("reach the ranks", function()
    local files = { ["print.lua"] = [[print(os.getenv "ACCELERATE_DEBUG_MODE",
      os.getenv "ACCELERATE_CPU_AFFINITY",
      os.getenv "ACCELERATE_DYNAMO_BACKEND", os.getenv "MASTER_ADDR", os.getenv "MASTER_PORT")]] }
    local words = { "--debug", "--enable_cpu_affinity", "--dynamo_backend", "cudagraphs", "--num_processes",
      "2" }
    words[#words + 1] = "print.lua"
    local line = "true\ttrue\tcudagraphs\t127.0.0.1\t29500"
    assert.are.same({ line, line }, messages.sorted_lines((run(0, files, words))))
    table.insert(words, 1, "--main_process_port=0")
    local port = tonumber(run(0, files, words):match "127.0.0.1\t(%d+)\n")
    assert.is_true(port > 0 and port ~= 29500)
    assert.are.equal("nil\tnil\tnil\tnil\tnil\n",
      (run(0, files, { "--same_network", "--rdzv_backend", "c10d", "print.lua" })))
  end)

  it("run a module, or another program in each rank", function()
    local files = { ["my/part.lua"] = "print('part', ...)", ["my/folder/init.lua"] = "print('folder', ...)" }
    assert.are.equal("part\ta\t-m\n", (run(0, files, { "-m", "my.part", "a", "-m" })))
    assert.are.equal("folder\nfolder\n", (run(0, files, { "--num_processes", "2", "--module", "my.folder" })))
    local _, err = run(1, files, { "-m", "my.other" })
    has(err, "--module: there is no module 'my.other':")
    local out = run(0, {},
      { "--no_python", "--num_processes", "2", "sh", "-c", "echo $RANK of $WORLD_SIZE $0", "x" })
    assert.are.same({ "0 of 2 x", "1 of 2 x" }, messages.sorted_lines(out))
    _, err = run(3, {}, { "--no_python", "--num_processes", "2", "sh", "-c", "exit 3" })
    has(err, "exited with status 3")
    _, err = run(127, {}, { "--no_python", "no_such_program" })
    has(err, "accel-run: cannot run no_such_program: No such file or directory")
  end)

  it("after the script's name are the script's, and a line says so where it does not know them", function()
    local notice = "accel-run: --num_processes after print.lua is an argument of the script, which does " ..
      "not mention it; as an " ..
      "option it comes before: accel-run --num_processes N print.lua\n"
    for text, err in pairs {
      ["-- accel-run --num_processes 2 print.lua\nprint(...)"] = notice,
      ["local accelerator = {} local num_processes = accelerator.num_processes print(...)"] = notice,
      ["local o = { num_processes = { 'integer' } } print(...)"] = "",
      ["print(...) local i = (...) == '--num_processes'"] = "",
      ["print(...) local i = arg[1]:match '^%-%-num%-processes'"] = notice,
      ["print(...) local i = arg[1]:match '^%-%-num_processes'"] = "",
      ["print(...) local t = {} t['num-processes'] = 1"] = "",
    } do
      local out, got = run(0, { ["print.lua"] = text }, { "print.lua", "--num_processes", "2", "--other" })
      assert.are.equal("--num_processes\t2\t--other\n", out)
      assert.are.equal(err, got, text)
    end
  end)
end)

describe("a word that is no file", function()
  it("prints how to call it, names the nearest command and ends with 1", function()
    local out, err = run(1, {}, { "confg" })
    assert.are.equal("", out)
    has(err, "accel-run: 'confg' is neither a file nor a command; did you mean 'config'?\n\nusage: accel-run")
    local _, far = run(1, {}, { "something" })
    has(far, "accel-run: 'something' is neither a file nor a command\n\nusage: accel-run")
    has(err, "accel-run env")
    local _, dashed = run(1, {}, { "estimate-memry" })
    has(dashed, "'estimate-memry' is neither a file nor a command; did you mean 'estimate-memory'?")
    local _, late = run(2, {}, { "--num_processes", "2", "test" })
    has(late, "accel-run: a command comes before the options: accel-run test --num_processes 2  (a " ..
      "script called " ..
      "test: ./test)\n")
    local _, tpu = run(2, {}, { "tpu-config", "--debug" })
    has(tpu, "accel-run: tpu-config: there is no backend for TPUs")
    run(0, { word = "print 'ran'" }, { "word" }) -- a script may have any name
    run(0, { ["a-word"] = "print 'ran'" }, { "a-word" })
  end)
end)

describe("modules", function()
  it("are found in the script's own folder, and in LuaRocks' tree of the user", function()
    local files = { ["s/main.lua"] = "print(require 'near', require 'pack', require 'rock', require 'stone')",
      ["s/near.lua"] = "return 'n'",
      ["s/pack/init.lua"] = "return 'p'", ["home/.luarocks/share/lua/5.1/rock.lua"] = "return 'r'",
      ["home/.luarocks/share/lua/5.1/stone/init.lua"] = "return 's'", ["home/.luarocks/lib/lua/5.1/x"] = "" }
    local env = { HOME = "HERE/home" }
    assert.are.equal("n\tp\tr\ts\n", (run(0, files, { "s/main.lua" }, env)))
    assert.are.equal("n\tp\tr\ts\n", (run(0, files, { "--num_processes", "1", "s/main.lua" }, env)))
    files["s/main.lua"] = "print(package.cpath)"
    has(run(0, files, { "s/main.lua" }, env), "HERE/home/.luarocks/lib/lua/5.1/?.so")
    files["pack/init.lua"] = "return 'here'"
    files["main.lua"] = "print(require 'pack')"
    assert.are.equal("here\n", (run(0, files, { "main.lua" }, env)))
  end)
end)
