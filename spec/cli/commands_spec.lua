-- host/settings/commands.c and lua/accelerate/commands: accel-run config, test, estimate-memory,
-- merge-weights, to-fsdp2.
local core = require "accelerate.core"
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local json = require "accelerate.utils.json"
local tensor = require "accelerate.tensor"
local yaml = require "accelerate.utils.yaml"
local has = require("spec.support.messages").has

local function run(status, folder, words, options)
  options = options or {}
  options.folder, options.env = folder, { HF_HOME = folder .. "/hf" }
  local got, out, err = host.run(words, options)
  assert(got == status, ("status %d, expected %d\nstdout: %s\nstderr: %s"):format(got, status, out, err))
  return out, err
end

local function read(path) return (yaml.decode(assert(fs.read(path)), path)) end

describe("accel-run config", function()
  it("asks by number or text in a pipe, and writes a file that runs have their settings from", function()
    host.in_folder(function(folder)
      local answers = "multi-CPU\n1\nyes\n3\n9\nbf16\n"
      local out = run(0, folder, { "config" }, { stdin = answers })
      has(out, "Which type of machine are you using?\n  1. No distributed training  (default)\n  2. " ..
        "multi-CPU\n  3. multi-GPU\n")
      has(out, "'9' is none of them: expected 1 to 3, or the text")
      local path = folder .. "/hf/accelerate/default_config.yaml"
      has(out, "accel-run: the configuration is in " .. path)
      assert.are.same({ compute_environment = "LOCAL_MACHINE", debug = true, distributed_type = "MULTI_CPU",
        downcast_bf16 = false, enable_cpu_affinity = false, machine_rank = 0, main_training_function = "main",
        mixed_precision = "bf16", num_machines = 1, num_processes = 3, rdzv_backend = "static",
        same_network = false,
        tpu_use_cluster = false, tpu_use_sudo = false, use_cpu = true }, read(path))
      out = run(0, folder, { "--explain" })
      for _, pattern in ipairs { "num_processes +3 ", "mixed_precision +bf16 ", "cpu +true ",
        "debug +true " } do
        assert.is_truthy(out:find(pattern), out)
      end
    end)
  end)

  it("takes the defaults where the input ends, and JSON by the file's name", function()
    host.in_folder(function(folder)
      run(0, folder, { "config", "--config_file", "deep/c.json" })
      local config = json.decode(assert(fs.read(folder .. "/deep/c.json")))
      assert.are.equal("NO", config.distributed_type)
      assert.are.equal("no", config.mixed_precision)
      run(0, folder, { "--config_file", "deep/c.json", "-e", "" })
      -- an answer that has no default is not made up
      local _, err = run(1, folder, { "config" }, { stdin = "2\n2\n1\n" })
      has(err, "accel-run config: the input ends before an answer to: What is the address of machine 0?")
      assert.is_false(fs.exists(folder .. "/hf"))
    end)
  end)

  it("asks about sharding, and writes what runs take", function()
    host.in_folder(function(folder)
      local function config(answers)
        run(0, folder, { "config" }, { stdin = "multi-CPU\n1\nno\n4\nno\n" .. answers })
        return read(folder .. "/hf/accelerate/default_config.yaml")
      end
      local one = config "yes\n1\nHYBRID_SHARD\nno\n1\nno\nA,B\nSHARDED_STATE_DICT\nyes\nyes\n"
      assert.are.equal("FSDP", one.distributed_type)
      assert.are.same({ fsdp_version = 1, fsdp_reshard_after_forward = "HYBRID_SHARD",
        fsdp_offload_params = false,
        fsdp_auto_wrap_policy = "TRANSFORMER_BASED_WRAP", fsdp_transformer_layer_cls_to_wrap = "A,B",
        fsdp_state_dict_type = "SHARDED_STATE_DICT", fsdp_cpu_ram_efficient_loading = true,
        fsdp_sync_module_states = true, fsdp_activation_checkpointing = true }, one.fsdp_config)
      assert.is_nil(one.parallelism_config)
      local two = config "yes\n2\nno\nyes\n2\n500\n1\nno\nno\nyes\n2\n\n"
      assert.are.same({ fsdp_version = 2, fsdp_reshard_after_forward = false, fsdp_offload_params = true,
        fsdp_auto_wrap_policy = "SIZE_BASED_WRAP", fsdp_min_num_params = 500,
        fsdp_state_dict_type = "SHARDED_STATE_DICT", fsdp_cpu_ram_efficient_loading = false,
        fsdp_activation_checkpointing = false }, two.fsdp_config)
      assert.are.same({ parallelism_config_dp_replicate_size = 2, parallelism_config_dp_shard_size = 2 },
        two.parallelism_config)
      local out = run(0, folder, { "--explain" })
      for _, pattern in ipairs { "use_fsdp +true ", "fsdp_min_num_params +500 ",
        "use_parallelism_config +true ",
        "parallelism_config_dp_shard_size +2 " } do
        assert.is_truthy(out:find(pattern), out)
      end
    end)
  end)

  it("has a menu with arrow keys on a terminal", function()
    if os.execute "command -v script >/dev/null 2>&1" ~= true then
      return pending("needs script (bsdutils)")
    end
    host.in_folder(function(folder)
      assert(fs.write(folder .. "/keys", [[
        for keys in '\033[B\n' '\n' 'no\n' '2\n' '\033[A\n' 'no\n' 'no\n'; do
          sleep 0.4; printf "$keys"; done; sleep 1]]))
      local pipe = io.popen(("cd '%s' && sh keys | HF_HOME=hf timeout 30 script " ..
        "-qec \"'%s' config\" /dev/null"):format(folder,
        host.path))
      local out = pipe:read "*a"
      pipe:close()
      has(out, "(arrow keys or a number, then Enter)")
      has(out, "\27[36m > multi-CPU")
      local config = read(folder .. "/hf/accelerate/default_config.yaml")
      assert.are.equal("MULTI_CPU", config.distributed_type)
      assert.are.equal(2, config.num_processes)
      assert.are.equal("bf16", config.mixed_precision) -- one up from the first is the last
    end)
  end)

  it("default writes one without questions, and leaves an existing file", function()
    host.in_folder(function(folder)
      run(0, folder, { "config", "default", "--mixed_precision", "bf16" })
      local path = folder .. "/hf/accelerate/default_config.yaml"
      assert.are.equal("bf16", read(path).mixed_precision)
      local out = run(0, folder, { "config", "default" })
      has(out, "it is left as it is")
      assert.are.equal("bf16", read(path).mixed_precision)
      local _, err = run(2, folder, { "config", "default", "--mixed_precision", "bf17" })
      has(err, "accel-run config: --mixed_precision: expected no, fp16, bf16, got 'bf17'")
    end)
  end)

  it("update replaces keys of earlier versions and adds what is missing", function()
    host.in_folder(function(folder)
      assert(fs.write(folder .. "/c.yaml", "distributed_type: NO\nfp16: true\ndynamo_backend: CUDAGRAPHS\n" ..
        "fsdp_config: {}\nmain_process_ip: null\nuse_cpu: yes\n"))
      run(0, folder, { "config", "update", "--config_file=c.yaml" })
      local config = read(folder .. "/c.yaml")
      assert.are.equal("NO", config.distributed_type)
      assert.are.equal("fp16", config.mixed_precision)
      assert.are.same({ dynamo_backend = "CUDAGRAPHS" }, config.dynamo_config)
      assert.are.equal(1, config.num_processes)
      assert.are.equal("static", config.rdzv_backend)
      assert.is_true(config.use_cpu)
      for _, key in ipairs { "fp16", "dynamo_backend", "fsdp_config", "main_process_ip" } do
        assert.is_nil(config[key])
      end
      local once = fs.read(folder .. "/c.yaml")
      run(0, folder, { "config", "update", "--config_file", "c.yaml" })
      assert.are.equal(once, fs.read(folder .. "/c.yaml"))
      assert(fs.write(folder .. "/c.yaml", "distributed_type: NO\nnum_proceses: 2\n"))
      local _, err = run(1, folder, { "config", "update", "--config_file", "c.yaml" })
      has(err, "c.yaml has keys that are not known: num_proceses (nearest: num_processes)")
      _, err = run(1, folder, { "config", "update", "--config_file", "none.yaml" })
      has(err, "none.yaml")
    end)
  end)
end)

describe("accel-run test", function()
  it("checks the ranks that are configured, and sums up", function()
    host.in_folder(function(folder)
      assert(fs.write(folder .. "/c.yaml", "distributed_type: MULTI_CPU\nnum_processes: 3\n"))
      for ranks, words in pairs { [1] = { "test" }, [2] = { "test", "--num_processes", "2" },
        [3] = { "test", "--config_file", "c.yaml" } } do
        local out = run(0, folder, words, { seconds = 120 })
        has(out, ("accel-run test: %d rank%s on cpu, mixed precision no\n"):format(ranks, ranks == 1 and ""
          or "s"))
        for _, check in ipairs { "collectives", "data loaders", "gradient accumulation",
          "saving and resuming" } do
          assert.is_truthy(out:find("\n  ok     " .. check .. " "), out)
        end
        has(out, "accel-run test: all is well")
      end
      local _, err = run(2, folder, { "test", "x.lua" })
      has(err, "accel-run test: takes launch options only, got 'x.lua'")
    end)
  end)

  it("fails when a check fails on any rank, and says which", function()
    host.in_folder(function(folder)
      -- rank 1's sums are wrong
      assert(fs.write(folder .. "/wrong.lua", [[
        local utils = require "accelerate.utils"
        local broadcast = utils.broadcast
        utils.broadcast = function(t, ...)
          t = broadcast(t, ...)
          return os.getenv "RANK" == "1" and t + 1 or t
        end
        return true]]))
      local out, err = run(1, folder, { "test", "--num_processes", "2", "-l", "wrong" })
      has(out, "  FAILED collectives            rank 1: broadcast: expected 7, got 8\n")
      has(out, "  ok     data loaders")
      has(err, "1 of 4 checks failed")
      assert.is_nil(out:find("all is well", 1, true))
    end)
  end)
end)

describe("accel-run estimate-memory", function()
  it("prints largest layer, total and training size by type, from the headers of files", function()
    host.in_folder(function(folder)
      core.safetensors_save(folder .. "/a.safetensors",
        { { "l1.weight", tensor.zeros(64, 128) }, { "l1.bias", tensor.zeros(64) } })
      core.safetensors_save(folder .. "/b.safetensors", { { "l2.weight", tensor.zeros(128, 64) } })
      local out = run(0, folder, { "estimate-memory", "." })
      has(out, ".: 3 tensors, 16448 parameters; the largest layer is l1\n")
      for _, line in ipairs { "float32 +33.0 KB +65.8 KB +263.2 KB\n",
        "bfloat16 +16.5 KB +32.9 KB +296.1 KB\n",
        "int8 +8.3 KB +16.4 KB +not trained\n", "int4 +4.1 KB +8.2 KB +not trained\n" } do
        assert.is_truthy(out:find("\n" .. line), out)
      end
      out = run(0, folder, { "estimate-memory", "b.safetensors", "--dtypes", "float16", "int8" })
      has(out, "b.safetensors: 1 tensors, 8192 parameters; the largest layer is l2\n")
      assert.is_nil(out:find("float32", 1, true))
      -- of several ranks
      core.safetensors_save(folder .. "/c.safetensors", { { "emb.weight", tensor.zeros(64, 64) },
        { "h.0.fc.weight", tensor.zeros(128, 64) }, { "h.1.fc.weight", tensor.zeros(128, 64) } })
      out = run(0, folder, { "estimate-memory", "c.safetensors", "--num_processes", "4", "--strategy",
        "zero-0",
        "ZeRO_1", "FULL_SHARD", "--dtypes", "float32" })
      has(out, "\ntraining with Adam on 4 ranks, computing in float32\n")
      for _, line in ipairs { "NO_SHARD +81.9 KB +81.9 KB +163.8 KB +0 bytes +327.7 KB +1.3 MB\n",
        "ZeRO%-1 +81.9 KB +81.9 KB +41.0 KB +0 bytes +204.8 KB +819.2 KB\n",
        "FULL_SHARD +20.5 KB +20.5 KB +41.0 KB +163.8 KB +245.8 KB +983.0 KB\n" } do
        assert.is_truthy(out:find("\n" .. line), out)
      end
      has(out, "units: 2 blocks, and the rest of the model; activations come on top\n")
      out = run(0, folder, { "estimate-memory", "c.safetensors", "--num_processes=4",
        "--dp_replicate_size=2" })
      assert.is_truthy(
        out:find "computing in bfloat16\n.*\nHYBRID_SHARD +41.0 KB +41.0 KB +81.9 KB +122.9 KB ", out)
      for words, message in pairs { [{ "none" }] = "there is no file or folder none",
        [{ ".", "--strategy", "FULL" }] = "got 'FULL'; did you mean 'FULL_SHARD'?",
        [{ ".", "--strategy",
        "HYBRID_SHARD" }] = "--strategy HYBRID_SHARD: it needs --dp_replicate_size above 1",
        [{ ".", "--num_processes", "0" }] = "--num_processes: expected a whole number of at least 1, got '0'",
        [{ ".", "--num_processes=3", "--dp_replicate_size=2" }] =
          "--dp_replicate_size 2 does not divide --num_processes 3",
        [{}] = "PATH is missing",
        [{ "a.safetensors", "b" }] = "'b' is an argument too many",
        [{ ".", "--dtype", "int8" }] = "the nearest is --dtypes",
        [{ ".", "--dtypes", "int9" }] = "--dtypes: expected float32, float16, " ..
        "bfloat16, int8, int4, got 'int9'" } do
        table.insert(words, 1, "estimate-memory")
        local status, _, err = host.run(words, { folder = folder })
        assert.is_true(status == 1 or status == 2)
        has(err, "accel-run estimate-memory: ")
        has(err, message)
      end
      has(run(0, folder, { "estimate-memory", "--help" }), "usage: accel-run estimate-memory PATH")
    end)
  end)
end)

describe("accel-run merge-weights", function()
  it("writes sharded weights into one file", function()
    host.in_folder(function(folder)
      local list = {}
      for i = 1, 4 do list[i] = { "l" .. i .. ".weight", tensor.full({ 3, 2 }, i) } end
      assert(fs.make_dirs(folder .. "/shards"))
      core.safetensors_save(folder .. "/shards/model-00001-of-00002.safetensors", { list[1], list[2] },
        { format = "pt" })
      core.safetensors_save(folder .. "/shards/model-00002-of-00002.safetensors", { list[3], list[4] },
        { format = "pt" })
      local map = {}
      for i = 1, 4 do
        map["l" .. i .. ".weight"] = ("model-0000%d-of-00002.safetensors"):format(i <= 2 and 1 or 2)
      end
      assert(fs.write(folder .. "/shards/model.safetensors.index.json", json.encode { weight_map = map }))
      run(0, folder, { "merge-weights", "shards", "out" })
      local loaded = core.safetensors_load(folder .. "/out/model.safetensors")
      assert.are.equal(4, #loaded)
      for _, item in ipairs(loaded) do
        assert.are.equal(tonumber(item[1]:match "%d"), item[2]:max():item())
      end
      run(0, folder, { "merge-weights", "shards", "one.bin" })
      assert.is_true(fs.exists(folder .. "/one.bin"))
      local _, err = run(1, folder, { "merge-weights", "shards", "shards", "--remove_checkpoint_dir" })
      has(err, "shards is not removed: the merged weights are in it")
      run(0, folder, { "merge-weights", "shards", "out", "--remove_checkpoint_dir" })
      assert.is_false(fs.exists(folder .. "/shards"))
      _, err = run(1, folder, { "merge-weights", "shards", "out" })
      has(err, "accel-run merge-weights: there is no folder shards")
    end)
  end)
end)

describe("accel-run merge-weights of a distributed checkpoint", function()
  local FROM_TORCH = "spec/sharded_files/from_torch"
  local here = assert(fs.real(FROM_TORCH))

  it("writes its weights under the model's names", function()
    host.in_folder(function(folder)
      run(0, folder, { "merge-weights", here .. "/pytorch_model_fsdp_0", "out" })
      local expected, seen = core.safetensors_open(FROM_TORCH .. "/expected.safetensors"), 0
      for _, item in ipairs(core.safetensors_load(folder .. "/out/model.safetensors")) do
        assert.same(expected:get_tensor("model." .. item[1]):totable(), item[2]:totable())
        seen = seen + 1
      end
      assert.equal(7, seen)
    end)
  end)

  it("writes what is no tensor in PyTorch's format only", function()
    host.in_folder(function(folder)
      local _, err = run(1, folder, { "merge-weights", here .. "/optimizer_0", "out" })
      has(err, "merge-weights: 'param_groups' is a list of 1, which a safetensors file does not hold")
      run(0, folder, { "merge-weights", here .. "/optimizer_0", "out", "--unsafe_serialization" })
      local merged = require("accelerate.files").load(folder .. "/out/pytorch_model.bin")
      assert.equal(0.01, merged.param_groups[1].lr)
      assert.same({ 3, 5 }, merged.state["0.weight"].exp_avg.shape)
    end)
  end)

  it("names the folders of a checkpoint that is given in their place", function()
    host.in_folder(function(folder)
      local _, err = run(1, folder, { "merge-weights", here, "out" })
      has(err, here .. "/pytorch_model_fsdp_0")
    end)
  end)

  it("reads files of pieces", function()
    host.in_folder(function(folder)
      local intervals = require "accelerate.checkpoint.intervals"
      assert(fs.make_dirs(folder .. "/cut"))
      for rank = 0, 1 do
        intervals.write(folder .. "/cut", rank, { { name = "w", shape = { 2, 3 }, from = rank * 3,
          tensor = core.arange(3) } })
      end
      run(0, folder, { "merge-weights", "cut", "w.safetensors", "--remove_checkpoint_dir" })
      assert.same({ { 0, 1, 2 }, { 0, 1, 2 } },
        core.safetensors_load(folder .. "/w.safetensors")[1][2]:totable())
      assert.is_false(fs.exists(folder .. "/cut"))
    end)
  end)
end)

describe("accel-run to-fsdp2", function()
  it("converts a file of Accelerate, as Accelerate does", function()
    host.in_folder(function(folder)
      assert(fs.write(folder .. "/c.yaml", "distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config:\n" ..
        "  fsdp_sharding_strategy: SHARD_GRAD_OP\n  fsdp_use_orig_params: true\n  fsdp_offload_params: " ..
        "false\n" ..
        "  fsdp_forward_prefetch: false\n  fsdp_state_dict_type: SHARDED_STATE_DICT\n"))
      local _, err = run(0, folder, { "to-fsdp2", "--config_file", "c.yaml", "--output_file", "d.yaml" })
      has(err, "c.yaml: fsdp_use_orig_params is left out: FSDP2 has it no more\n")
      has(err, "c.yaml: fsdp_forward_prefetch is left out: FSDP2 does not have it yet\n")
      assert.are.same({ distributed_type = "FSDP", mixed_precision = "bf16", fsdp_config = { fsdp_version = 2,
        fsdp_reshard_after_forward = false, fsdp_offload_params = false,
        fsdp_state_dict_type = "SHARDED_STATE_DICT" } },
        read(folder .. "/d.yaml"))
      _, err = run(1, folder, { "to-fsdp2", "--config_file", "c.yaml", "--output_file", "d.yaml" })
      has(err, "d.yaml is there already; --overwrite replaces it")
      _, err = run(2, folder, { "to-fsdp2", "--config_file", "c.yaml" })
      has(err, "give --output_file FILE, or --overwrite")
      run(0, folder, { "to-fsdp2", "--config_file", "c.yaml", "--overwrite" })
      assert.are.equal(2, read(folder .. "/c.yaml").fsdp_config.fsdp_version)
      _, err = run(0, folder, { "to-fsdp2", "--config_file", "c.yaml", "--overwrite" })
      has(err, "its fsdp_version is 2 already")
    end)
  end)
end)
