-- utils: walks over nested values, environment scopes, capabilities, versions, ports, names.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local env = require "accelerate.utils.environment"
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local nn = require "accelerate.nn"
local ordered = require "accelerate.utils.ordered"
local ranks = require "spec.support.ranks"
local messages = require "spec.support.messages"

local raises, raises_like = messages.raises, messages.raises_like
local utils = accelerate.utils

describe("nested values", function()
  it("send_to_device moves tensors and what has a method to, and leaves the rest", function()
    local moved = {}
    local batch = { to = function(_, device) moved[#moved + 1] = device return "moved" end }
    batch = setmetatable(batch, { __name = "Batch" })
    local x = core.ones(2)
    local data = { x = x, list = { 1, "a", { batch } }, skip = { batch } }
    local got = utils.send_to_device(data, "cpu", { non_blocking = true, skip_keys = "skip" })
    assert.are.equal(x, got.x)
    assert.are.equal("moved", got.list[3][1])
    assert.are.equal(batch, got.skip[1])
    assert.are.equal(batch, data.list[3][1]) -- the given one is left alone
    assert.are.same({ "cpu" }, moved)
    assert.are.equal(data.skip, utils.send_to_device(data.skip, "cpu", { skip_keys = { 1 } }))
    local still = { x, { "text", 5 } }
    assert.are.equal(still, utils.send_to_device(still, "cpu"))
    local o = ordered.new()
    o.b = batch
    o.a = x
    assert.are.same({ "b", "a" }, ordered.keys(utils.send_to_device(o, "cpu")))
    raises("send_to_device: device is missing", utils.send_to_device, x)
    raises("unknown option 'nonblocking'; did you mean 'non_blocking'", utils.send_to_device, x, "cpu",
      { nonblocking = true })
    raises("option 'skip_keys' must be a string or a list, got 3", utils.send_to_device, x, "cpu",
      { skip_keys = 3 })
  end)

  it("walks keep the kind of their containers", function()
    local doubled = utils.recursively_apply(function(t) return t * 2 end,
      { core.ones(1), k = { z = core.ones(1), s = "kept" } })
    assert.are.equal(2, doubled[1]:item())
    assert.are.equal(2, doubled.k.z:item())
    assert.are.equal("kept", doubled.k.s)
    local paths = {}
    utils.recursively_apply(function(_, path) paths[#paths + 1] = path end,
      { "a", { b = "c", ["d e"] = "f" } }, function(v) return type(v) == "string" end)
    assert.are.same({ "[1]", "[2].b", '[2]["d e"]' }, paths)
    raises("recursively_apply: fn must be a function, got 3", utils.recursively_apply, 3)
    raises("recursively_apply: fn is missing", utils.recursively_apply)
    raises("here: expected a tensor, or a table of them, got a Linear at a", utils.recursively_apply, print,
      { a = nn.Linear(1, 1) }, nil, "here")
    local o = ordered.new()
    o.z = 1
    local like = utils.honor_type(o, { x = 5, b = 6 })
    like.a = 7
    assert.are.same({ "b", "x", "a" }, ordered.keys(like))
    assert.are.same({ 1, 2 }, utils.honor_type({}, { 1, 2 }))
    raises("honor_type: argument 1 must be a plain table, got a Linear", utils.honor_type, nn.Linear(1, 1),
      {})
    assert.is_false(utils.is_namedtuple({ 1 }))
  end)

  it("tells device, batch size, form and shapes, and makes tensors of a form", function()
    local data = { b = { core.ones(3, 2) }, a = { core.zeros(4, { dtype = "int64" }), "text" } }
    assert.are.equal("cpu", utils.find_device(data))
    assert.is_nil(utils.find_device { 1, "x" })
    assert.are.equal(4, utils.find_batch_size(data)) -- keys in order: a comes first
    raises("find_batch_size: an empty table at x has no batch size", utils.find_batch_size, { x = {} })
    raises("find_batch_size: expected a tensor, got a string at [1]", utils.find_batch_size,
      { "text", core.ones(1) })
    raises("find_batch_size: a tensor without dims", utils.find_batch_size, core.tensor(1))
    raises("find_batch_size: expected a tensor, got nil", utils.find_batch_size)
    local cyclic = {}
    cyclic[1] = cyclic
    raises("nested more than 200 deep", utils.find_batch_size, cyclic)
    assert.are.equal(4, utils.ignorant_find_batch_size(data))
    for _, nothing in ipairs { {}, "x", cyclic } do assert.is_nil(utils.ignorant_find_batch_size(nothing)) end
    local form = utils.get_data_structure(data)
    assert.is_true(utils.is_tensor_information(form.a[1]))
    assert.are.same({ { 4 }, "int64", "text" }, { form.a[1].shape, form.a[1].dtype, form.a[2] })
    assert.are.same({ a = { { 4 }, "text" }, b = { { 3, 2 } } }, utils.get_shape(data))
    local made = utils.initialize_tensors(form)
    assert.are.same({ 3, 2 }, made.b[1].shape)
    assert.are.equal("int64", made.a[1].dtype)
    assert.are.same({ a = { { 0, 0, 0, 0 }, "text" }, b = { { { 1, 1 }, { 1, 1 }, { 1, 1 } } } },
      utils.listify(data))
    assert.are.equal(5, utils.listify(core.tensor(5)))
  end)

  it("concatenate joins values of one form", function()
    assert.are.same({ 1, 1, 2 },
      utils.concatenate({ { x = core.ones(2) }, { x = core.full({ 1 }, 2) } }).x:totable())
    assert.are.same({ { 1, 1, 0 } }, utils.concatenate({ { core.ones(1, 2) }, { core.zeros(1, 1) } },
      2)[1]:totable())
    assert.are.equal("one", utils.concatenate { "one" })
    assert.are.equal("one", utils.concatenate({ { a = { "one" } } }).a[1])
    raises("concatenate: expected tensors, got a string at a", utils.concatenate,
      { { a = "x" }, { a = "y" } })
    raises("concatenate: value 2 lacks x", utils.concatenate, { { x = core.ones(1) }, {} })
    raises_like("concatenate: the values differ in form at x: .* in value 1, 3 in value 2", utils.concatenate,
      { { x = core.ones(1) }, { x = 3 } })
    raises("concatenate: expected at least one value", utils.concatenate, {})
    raises("concatenate: list is missing", utils.concatenate)
    raises("concatenate: dim must be an integer, got 'x'", utils.concatenate, { core.ones(1) }, "x")
  end)

  it("names files as Accelerate", function()
    for name, value in pairs { MODEL_NAME = "pytorch_model", WEIGHTS_NAME = "pytorch_model.bin",
      WEIGHTS_PATTERN_NAME = "pytorch_model{suffix}.bin", WEIGHTS_INDEX_NAME = "pytorch_model.bin.index.json",
      SAFE_MODEL_NAME = "model", SAFE_WEIGHTS_NAME = "model.safetensors",
      SAFE_WEIGHTS_PATTERN_NAME = "model{suffix}.safetensors",
      SAFE_WEIGHTS_INDEX_NAME = "model.safetensors.index.json", FSDP_MODEL_NAME = "pytorch_model_fsdp",
      OPTIMIZER_NAME = "optimizer", SCHEDULER_NAME = "scheduler", SAMPLER_NAME = "sampler",
      SCALER_NAME = "scaler.pt", RNG_STATE_NAME = "random_states",
      PROFILE_PATTERN_NAME = "profile_{suffix}.json" } do
      assert.are.equal(value, utils[name])
      assert.are.equal(value, utils.constants[name])
    end
  end)

  it("slice_tensors takes positions, pad_input_tensors fills with zeros", function()
    local x = core.arange(5)
    assert.are.same({ 1, 2 }, utils.slice_tensors({ x }, 2, 3)[1]:totable())
    assert.are.same({ 1, 2 }, utils.slice_tensors(x, { 2, 3 }, 0, 2):totable())
    assert.are.same({ 3, 4 }, utils.slice_tensors(x, 4, 9):totable())
    assert.are.same({}, utils.slice_tensors(x, 6, 9):totable())
    raises("slice_tensors: a tensor without dims at a", utils.slice_tensors, { a = core.tensor(1) }, 1, 1)
    raises("slice_tensors: first must be at least 1, got 0", utils.slice_tensors, x, 0, 1)
    assert.are.same({ 0, 1, 2, 3, 4, 0, 0, 0 }, utils.pad_input_tensors({ x }, 5, 4)[1]:totable())
    assert.are.same({ { 1, 0 } }, utils.pad_input_tensors(core.ones(1, 1), 1, 2, 2):totable())
    assert.are.equal(x, utils.pad_input_tensors(x, 5, 5))
    raises("pad_input_tensors: a tensor of shape [5] does not have batch_size 4 in dim 1",
      utils.pad_input_tensors, x, 4, 3)
    raises("pad_input_tensors: num_processes is missing", utils.pad_input_tensors, x, 5)
  end)

  it("convert_to_fp32 converts the two half types only", function()
    local data = { h = core.ones(1, { dtype = "float16" }), b = { core.ones(1, { dtype = "bfloat16" }) },
      d = core.ones(1, { dtype = "float64" }),
      i = core.arange(2), s = "text" }
    local got = utils.convert_to_fp32(data)
    assert.are.same({ "float32", "float32", "float64", "int64", "text" },
      { got.h.dtype, got.b[1].dtype, got.d.dtype, got.i.dtype, got.s })
    local a, b = utils.convert_outputs_to_fp32(function(x) return x, { x } end)(data.h)
    assert.are.same({ "float32", "float32" }, { a.dtype, b[1].dtype })
  end)
end)

describe("scopes of the environment", function()
  it("patch_environment sets upper-case names and restores them, also after an error", function()
    env.set("AX_SPEC_OLD", "old")
    local function look(extra)
      return os.getenv("AX_SPEC_OLD"), os.getenv("AX_SPEC_NEW"), os.getenv("AX_SPEC_FLAG"), extra
    end
    assert.are.same({ "1.5", "12", "true", "more" },
      { utils.patch_environment({ ax_spec_old = 1.5, AX_SPEC_NEW = 12, ax_spec_flag = true }, look, "more") })
    assert.are.same({ "old" }, { look() })
    raises("boom", utils.patch_environment, { ax_spec_new = 1 }, function()
      env.set("AX_SPEC_NEW", nil)
      error("boom")
    end)
    assert.are.same({ "old" }, { look() })
    utils.patch_environment({ ax_spec_old = "a" }, function()
      utils.patch_environment({ ax_spec_old = "b" },
        function() assert.are.equal("b", os.getenv("AX_SPEC_OLD")) end)
      assert.are.equal("a", os.getenv("AX_SPEC_OLD"))
    end)
    raises("patch_environment: 'a=b' cannot be a variable's name", utils.patch_environment, { ["a=b"] = 1 },
      print)
    raises("patch_environment: the value of a must be", utils.patch_environment, { a = {} }, print)
    raises("patch_environment: variables must be a table, got 3", utils.patch_environment, 3, print)
    raises("patch_environment: fn is missing", utils.patch_environment, {})
    env.set("AX_SPEC_OLD", nil)
  end)

  it("clear_environment empties it for the time of a call", function()
    local before = env.snapshot()
    assert.is_truthy(before.PATH)
    local inside = utils.clear_environment(function(x)
      assert.is_nil(os.getenv("PATH"))
      assert.is_nil(next(env.snapshot()))
      env.set("AX_SPEC_NEW", "1")
      return x
    end, 5)
    assert.are.equal(5, inside)
    assert.are.same(before, env.snapshot())
    raises("boom", utils.clear_environment, function() error("boom") end)
    assert.are.same(before, env.snapshot())
    raises("clear_environment: fn is missing", utils.clear_environment)
  end)

  it("purge_accelerate_environment undoes what a function did to ACCELERATE_ variables", function()
    env.set("ACCELERATE_SPEC_A", "a")
    env.set("ACCELERATE_SPEC_B", "b")
    local fn = utils.purge_accelerate_environment(function(x)
      env.set("ACCELERATE_SPEC_A", "changed")
      env.set("ACCELERATE_SPEC_B", nil)
      env.set("ACCELERATE_SPEC_C", "c")
      env.set("AX_SPEC_OTHER", "kept")
      if x == "fail" then error("boom") end
      return x, os.getenv("ACCELERATE_SPEC_A")
    end)
    local function now()
      return { a = os.getenv("ACCELERATE_SPEC_A"), b = os.getenv("ACCELERATE_SPEC_B"),
        c = os.getenv("ACCELERATE_SPEC_C") }
    end
    assert.are.same({ 3, "changed" }, { fn(3) })
    assert.are.same({ a = "a", b = "b" }, now())
    raises("boom", fn, "fail")
    assert.are.same({ a = "a", b = "b" }, now())
    assert.are.equal("kept", os.getenv("AX_SPEC_OTHER"))
    for _, name in ipairs { "ACCELERATE_SPEC_A", "ACCELERATE_SPEC_B", "AX_SPEC_OTHER" } do
      env.set(name, nil)
    end
    raises("fn must be a function, got 'x'", utils.purge_accelerate_environment, "x")
  end)

  it("variables are read with their words for yes and no, and numbers", function()
    for _, word in ipairs { "y", "YES", "t", "True", "on", "1" } do
      assert.is_true(utils.str_to_bool(word))
    end
    for _, word in ipairs { "n", "No", "f", "FALSE", "off", "0" } do
      assert.is_false(utils.str_to_bool(word))
    end
    raises("expected one of y yes t true on 1, n no f false off 0, got 'maybe'", utils.str_to_bool, "maybe")
    utils.patch_environment({ AX_N = 7, AX_NEGATIVE = -1, AX_FLAG = "on", AX_WORD = "bf16", AX_BAD = "x" },
      function()
      assert.are.equal(7, utils.get_int_from_env({ "AX_NONE", "AX_NEGATIVE", "AX_N" }, 3))
      assert.are.equal(3, utils.get_int_from_env({ "AX_NONE" }, 3))
      raises("get_int_from_env: AX_BAD must hold a whole number, got 'x'", utils.get_int_from_env,
        { "AX_BAD" }, 3)
      assert.is_true(utils.parse_flag_from_env("AX_FLAG"))
      assert.is_false(utils.parse_flag_from_env("AX_NONE"))
      assert.is_true(utils.parse_flag_from_env("AX_NONE", true))
      raises("AX_BAD: expected one of", utils.parse_flag_from_env, "AX_BAD")
      assert.are.same({ "bf16", "no", "fp16" },
        { utils.parse_choice_from_env("AX_WORD"), utils.parse_choice_from_env("AX_NONE"),
        utils.parse_choice_from_env("AX_NONE", "fp16") })
    end)
    local _, _, err = host.run { "-e", [[
      local lines = require("accelerate.utils").convert_dict_to_env_variables { B = "2", A = "x/y", C = "",
        D = "a b", E = "a;b" }
      assert(#lines == 2 and lines[1] == "A=x/y\n" and lines[2] == "B=2\n")]] }
    for _, name in ipairs { "C=", "D=a b", "E=a;b" } do
      assert.is_truthy(err:find(name .. " is left out", 1, true), err)
    end
    raises("names must be a list, got 'x'", utils.get_int_from_env, "x")
    raises("the value of A must be a string, got 3", utils.convert_dict_to_env_variables, { A = 3 })
    raises("parse_choice_from_env: name is missing", utils.parse_choice_from_env)
  end)
end)

describe("what there is", function()
  it("is told by is_..._available, and a name that is not there raises with the nearest", function()
    local count = 0
    for _, name in ipairs(getmetatable(utils).__members) do
      if name:match("^is_.*_available$") then
        count = count + 1
        assert.are.equal("boolean", type(utils[name]()), name)
      end
    end
    assert.is_true(count >= 55, count)
    assert.are.equal((core.device_count("cuda")) > 0, utils.is_cuda_available())
    assert.are.equal(utils.is_cuda_available(), utils.is_fp16_available())
    assert.is_true(utils.is_bf16_available() and utils.is_torch_distributed_available()
      and utils.is_tqdm_available())
    assert.are.equal(package.searchpath("accelerate.tracking.tensorboard", package.path) ~= nil,
      utils.is_tensorboard_available())
    assert.are.equal(package.searchpath("accelerate.optim.lomo", package.path) ~= nil,
      utils.is_lomo_available())
    assert.is_false(utils.is_deepspeed_available() or utils.is_fp8_available()
      or utils.is_torch_xla_available() or utils.is_habana_gaudi1())
    raises("has no 'is_tensorbord_available'; did you mean 'is_tensorboard_available'",
      function() return utils.is_tensorbord_available end)
    for name in pairs(require "accelerate.utils.available") do assert.is_function(utils[name], name) end
  end)

  it("versions are compared by their numbers", function()
    local compare = utils.compare_versions
    for _, case in ipairs { { "1.10", ">", "1.9.5" }, { "2.1", "==", "2.1.0" }, { "2.1.0-beta3", "<", "2.1" },
      { "2.1rc1", ">", "2.1b9" },
      { "2.1rc2", ">", "2.1.rc1" }, { "1.0.post1", ">", "1.0" }, { "1.0.dev0", "<=", "1.0a1" },
      { "v3.0", "!=", "3.1" }, { "1.0", ">=", "1" } } do
      assert.is_true(compare(unpack(case)), table.concat(case, " "))
    end
    assert.is_true(compare("accelerate", "==", accelerate.__version__) and compare("luajit", ">=", "2.0"))
    raises("there is no library 'torch' here; known: accelerate, luajit", compare, "torch", ">", "1.0")
    raises("operation must be one of >, >=, ==, !=, <=, <, got '~'", compare, "1.0", "~", "1.0")
    raises("requirement_version must be a version such as", compare, "1.0", ">", "new")
    raises("requirement_version is missing", compare, "1.0", ">")
    raises("is_torch_version: there is no PyTorch here", utils.is_torch_version, ">", "2.0")
  end)

  it("GPUs are asked of the driver", function()
    local names, count = utils.get_gpu_info()
    assert.are.equal(#names, count)
    assert.is_true(utils.check_cuda_p2p_ib_support() or count > 1)
    local kind, distributed = utils.get_current_device_type()
    local cuda = utils.is_cuda_available()
    assert.are.same({ cuda and "cuda" or "cpu", cuda and "MULTI_GPU" or "MULTI_CPU" }, { kind, distributed })
    assert.are.equal("boolean", type(utils.check_cuda_fp8_capability()))
    host.in_folder(function(folder)  -- a driver's tool that answers as NVIDIA's does
      local file = io.open(folder .. "/nvidia-smi", "w")
      file:write([[#!/bin/sh
case "$1" in
  *=name) printf 'NVIDIA GeForce RTX 4090\nNVIDIA GeForce RTX 4090\n' ;;
  *=driver_version) printf '%s\n' "$DRIVER" ;;
  *=compute_cap) printf '8.9\n' ;;
esac]])
      file:close()
      os.execute(("chmod +x '%s/nvidia-smi'"):format(folder))
      if fs.exists("/proc/driver/nvidia/gpus") then return end
      utils.patch_environment({ PATH = folder .. ":" .. os.getenv("PATH"), DRIVER = "535.1.2" }, function()
        assert.are.same({ "NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090" }, (utils.get_gpu_info()))
        assert.is_false(utils.check_cuda_p2p_ib_support())
        assert.is_true(utils.check_cuda_fp8_capability())
        env.set("DRIVER", "560.35.03")
        assert.is_true(utils.check_cuda_p2p_ib_support())
      end)
    end)
  end)

  it("ports: a free one is not in use until something listens on it", function()
    local port = utils.get_free_port()
    assert.is_true(port > 1023 and port < 65536)
    assert.is_false(utils.is_port_in_use(port))
    local ffi = require "ffi"
    pcall(ffi.cdef, "struct spec_address { uint16_t family, port; uint32_t address; char zero[8]; };")
    pcall(ffi.cdef, "int socket(int domain, int type, int protocol); int close(int fd);")
    pcall(ffi.cdef, "int bind(int fd, const struct spec_address *address, uint32_t length);")
    pcall(ffi.cdef,
      "int listen(int fd, int backlog); uint16_t htons(uint16_t n); uint32_t htonl(uint32_t n);")
    local fd = ffi.C.socket(2, 1, 0)
    local address = ffi.new("struct spec_address")
    address.family, address.port, address.address = 2, ffi.C.htons(port), ffi.C.htonl(0x7F000001)
    assert.are.equal(0, ffi.C.bind(fd, address, 16))
    assert.are.equal(0, ffi.C.listen(fd, 1))
    assert.is_true(utils.is_port_in_use(port))
    ffi.C.close(fd)
    assert.are.equal("boolean", type(utils.is_port_in_use()))
    raises("is_port_in_use: port must be at least 1 and at most 65535, got 0", utils.is_port_in_use, 0)
    raises("is_port_in_use: port must be an integer, got 'x'", utils.is_port_in_use, "x")
  end)

  it("write_basic_config writes what Accelerate reads, and leaves a file that is there", function()
    host.in_folder(function(folder)
      local status, out = host.run({ "-e", [[
        local utils = require("accelerate").utils
        print(utils.write_basic_config("BF16"))
        print(utils.write_basic_config("fp16"))
        print(utils.write_basic_config("no", os.getenv("PLACE") .. "/deep/er/my.yaml"))
      ]] }, { env = { HF_HOME = folder .. "/home", PLACE = folder } })
      assert.are.equal(0, status)
      local path = folder .. "/home/accelerate/default_config.yaml"
      assert.are.equal(path, out:match("^[^\n]*"))
      assert.matches("There is a configuration at [^\n]*default_config.yaml already[^\n]*\nfalse\n", out)
      local text = fs.read(path)
      local gpus = select(2, utils.get_gpu_info())
      for _, line in ipairs { "compute_environment: LOCAL_MACHINE", "mixed_precision: 'bf16'",
        "num_processes: " .. math.max(gpus, 1),
        "use_cpu: " .. tostring(gpus == 0), gpus > 1 and "distributed_type: MULTI_GPU"
        or "distributed_type: 'NO'", "debug: false" } do
        assert.is_truthy(("\n" .. text):find("\n" .. line .. "\n", 1, true), line)
      end
      assert.matches("mixed_precision: 'no'", fs.read(folder .. "/deep/er/my.yaml"))
    end)
    raises("mixed_precision must be one of no, fp16, bf16, fp8, got 'fp17'; did you mean 'fp16'",
      utils.write_basic_config, "fp17")
    raises("mixed_precision must be a string, got 3", utils.write_basic_config, 3)
    raises("save_location is empty", utils.write_basic_config, "no", "")
  end)
end)

describe("small helpers", function()
  it("names, bytes, fields of fields, merged tables", function()
    assert.are.same({ "Sequential", "Linear", "3" },
      { utils.get_pretty_name(nn.Sequential()), utils.get_pretty_name(nn.Linear), utils.get_pretty_name(3) })
    assert.matches("^function at .*utilities_spec.lua:%d+$", utils.get_pretty_name(function() end))
    local texts = {}
    for i, size in ipairs { 0, 512, 1024, 1536, 1024 ^ 2 * 1.25, 1024 ^ 3 * 2.345, 1024 ^ 5 * 3 } do
      texts[i] = utils.convert_bytes(size)
    end
    assert.are.same({ "0 bytes", "512 bytes", "1.0 KB", "1.5 KB", "1.25 MB", "2.35 GB", "3.0 PB" }, texts)
    raises("convert_bytes: size must be a number, got 'x'", utils.convert_bytes, "x")
    local model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 3)))
    assert.are.same({ 3, 2 }, utils.recursive_getattr(model, "1.1.weight").shape)
    assert.are.equal(5, utils.recursive_getattr({ a = { { b = 5 } } }, "a.1.b"))
    raises("recursive_getattr: '1' has no '5'", utils.recursive_getattr, model, "1.5.weight")
    raises("recursive_getattr: 'a.b' is 3, which has no fields", utils.recursive_getattr,
      { a = { b = 3 } },
      "a.b.c")
    raises("recursive_getattr: path is missing", utils.recursive_getattr, model)
    local into = { a = { x = 1, keep = 2 }, b = 3 }
    assert.are.equal(into, utils.merge_dicts({ a = { x = 9, deep = { 1 } }, c = { d = 4 } }, into))
    assert.are.same({ a = { x = 9, keep = 2, deep = { 1 } }, b = 3, c = { d = 4 } }, into)
    raises("merge_dicts: 'b' is a table in the source, 3 in the destination", utils.merge_dicts, { b = {} },
      into)
    raises("merge_dicts: destination is missing", utils.merge_dicts, {})
  end)

  it("modules from the inside out, and the model behind a prepared one", function()
    local model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 3)))
    local names = {}
    for i, item in ipairs(utils.get_module_children_bottom_up(model, { return_fqns = true })) do
      names[i] = item[1] .. ":" .. item[2].__name
    end
    assert.are.equal("0:Linear 1.0:ReLU 1.1:Linear 1:Sequential :Sequential", table.concat(names, " "))
    local list = utils.get_module_children_bottom_up(model)
    assert.are.equal(model, list[5])
    raises("model must be a module, got 3", utils.get_module_children_bottom_up, 3)
    ranks.ok(2, [[
      local nn = accelerate.nn
      local accelerator = accelerate.Accelerator { mixed_precision = "bf16" }
      local model = nn.Sequential(nn.Linear(2, 2))
      local forward = model.forward
      local prepared = accelerator:prepare(model)
      local extract = accelerate.utils.extract_model_from_parallel
      check(extract(prepared) == model and model.forward ~= forward)
      check(extract(prepared, { keep_fp32_wrapper = false, recursive = true }) == model
        and model.forward == forward)
      check(not pcall(extract, prepared, { keep_fp32 = true }) and not pcall(extract, 3))
    ]])
    assert.is_false(utils.model_has_dtensor(model) or utils.is_peft_model(model))
    raises("is_peft_model: model must be a module, got nil", utils.is_peft_model)
  end)

  it("clean_state_dict_for_safetensors keeps one name of each tensor, contiguous", function()
    local w = core.arange(6):reshape(2, 3)
    local dict = { a = w, b = w, c = w:t(), part = w[1], text = "x" }
    local clean = utils.clean_state_dict_for_safetensors(dict)
    assert.are.equal(w, clean.a)
    assert.is_nil(clean.b)
    assert.is_true(clean.c:is_contiguous())
    assert.are.same({ { 0, 3 }, { 1, 4 }, { 2, 5 } }, clean.c:totable())
    assert.are.same({ "x", { 0, 1, 2 } }, { clean.text, clean.part:totable() })
    assert.are.equal(w, dict.b)
    raises("state_dict must be a table, got 3", utils.clean_state_dict_for_safetensors, 3)
  end)

  it("what needs other libraries says so", function()
    raises("install_xla: torch_xla is a library for PyTorch on TPUs", utils.install_xla)
    local p = core.ones(1)
    assert.are.equal(5, utils.GatheredParameters({ p }, { modifier_rank = 0 }, function(x) return x end, 5))
    assert.are.equal(5, utils.GatheredParameters(p, function() return 5 end))
    raises("GatheredParameters: params must be a tensor or a list, got 3", utils.GatheredParameters, 3, print)
    raises("GatheredParameters: fn is missing", utils.GatheredParameters, p)
    raises("prepare_pippy: pipeline parallelism is not there yet", accelerate.prepare_pippy, nn.Linear(1, 1),
      { split_points = "auto", num_chunks = 2 })
  end)

  it("start-up does not load them", function()
    local _, out = host.run { "-e", [[
      require("accelerate.utils")
      for name in pairs(package.loaded) do
        if name:find("accelerate.utils.", 1, true) then print(name) end
      end]] }
    for _, name in ipairs { "operations", "nested", "memory", "machine", "available", "other" } do
      assert.is_nil(out:find("utils." .. name .. "\n", 1, true), name)
    end
  end)
end)
