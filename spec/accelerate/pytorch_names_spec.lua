--- Names that public PyTorch code uses: those that are there, and what errors say of the others.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local data = require "accelerate.data"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local tensor = require "accelerate.tensor"
local host = require "spec.support.host"
local raises = require("spec.support.messages").raises

local D, utils, cuda = accelerate.distributions, accelerate.utils, tensor.cuda
local x = tensor { -1, 2 }

describe("tensor.random", function()
  local function draws()
    return { tensor.rand(1):item(), math.random(), nn.init.normal_(tensor.empty(1)):item() }
  end

  it("forks the generators", function()
    tensor.manual_seed(1)
    local expected = draws()
    tensor.manual_seed(1)
    local inside, second = tensor.random.fork_rng(function(a)
      tensor.random.manual_seed(2)
      return draws(), a
    end, 5)
    assert.equal(5, second)
    assert.are_not.same(expected, inside)
    assert.same(expected, draws())
    assert.equal(1, tensor.random.initial_seed())

    tensor.manual_seed(1)
    raises("stop", tensor.random.fork_rng, { devices = {}, enabled = true }, function()
      draws()
      error "stop"
    end)
    assert.same(expected, draws())
    tensor.manual_seed(1)
    tensor.random.fork_rng({ enabled = false }, draws)
    assert.are_not.same(expected, draws())
    raises("fork_rng: unknown option 'enable'; did you mean 'enabled'?", tensor.random.fork_rng,
      { enable = true }, draws)
    raises("fork_rng: expected a function as the last argument", tensor.random.fork_rng)
  end)

  it("has the functions of seeds and states", function()
    local state = tensor.random.get_rng_state()
    local expected = tensor.rand(2):tolist()
    tensor.random.set_rng_state(state)
    assert.same(expected, tensor.rand(2):tolist())
    raises("accelerate.tensor.random has no 'fork'; did you mean 'fork_rng'?",
      function() return tensor.random.fork end)
  end)
end)

describe("tensor", function()
  it("has methods in place as functions", function()
    assert.same({ 0, 2 }, tensor.relu_(x:clone()):tolist())
    assert.same({ 0, 1 }, tensor.clamp_(x:clone(), 0, 1):tolist())
    local y = x:clone()
    assert.is_true(rawequal(y, tensor.sigmoid_(y)))
    assert.is_true(rawequal(y, tensor.uniform_(y)))
    raises("there is no function relo_; did you mean", function() return tensor.relo_ end)
  end)

  it("knows its default device", function()
    assert.equal("cpu", tensor.get_default_device())
  end)
end)

describe("cuda", function()
  it("says what the driver says of a GPU", function()
    local there = cuda.is_available()
    assert.equal(there, cuda.is_bf16_supported())
    if not there then
      raises("cuda.current_device: there is no GPU", cuda.current_device)
      raises("cuda.get_device_name: there is no GPU", cuda.get_device_name)
      return
    end
    assert.equal(0, cuda.current_device())
    if not pcall(cuda.get_device_capability) then return end -- no driver: an emulated device
    assert.is_string(cuda.get_device_name(0))
    local properties, major = cuda.get_device_properties "cuda:0", cuda.get_device_capability()
    assert.equal(major, properties.major)
    assert.is_true(properties.total_memory > 0)
    raises("has no 'multi_processor_count'", function() return properties.multi_processor_count end)
  end)
end)

describe("the driver", function()
  it("is asked for one GPU by its address on the bus", function()
    host.in_folder(function(folder)
      local file = io.open(folder .. "/nvidia-smi", "w")
      file:write [[#!/bin/sh
[ "$2" = --id=0000:FF:1F.0 ] || exit 9
case "$1" in
  *=name) echo NVIDIA H100 80GB HBM3 ;;
  *=compute_cap) echo 9.0 ;;
esac]]
      file:close()
      os.execute(("chmod +x '%s/nvidia-smi'"):format(folder))
      local kept = { core.device_count, core._device_bus, core.memory_stats }
      local bus = "0000:FF:1F.0"
      core.device_count = function() return 2 end
      core._device_bus = function(device) return device == "cuda:1" and bus or nil end
      core.memory_stats = function() return { limit_bytes = 5 } end
      local fine, err = pcall(utils.patch_environment, { PATH = folder .. ":" .. os.getenv "PATH" },
        function()
        assert.equal("NVIDIA H100 80GB HBM3", cuda.get_device_name(1))
        assert.same({ 9, 0 }, { cuda.get_device_capability "cuda:1" })
        local all = cuda.get_device_properties(1)
        assert.same({ "NVIDIA H100 80GB HBM3", 9, 0, 5 },
          { all.name, all.major, all.minor, all.total_memory })
        assert.is_true(cuda.is_bf16_supported())
        raises("cuda.get_device_name: the driver does not say it of cuda:0", cuda.get_device_name, 0)
        bus = "0000:01:00.0"
        raises("cuda.get_device_capability: the driver does not say it of cuda:1",
          cuda.get_device_capability, 1)
        raises("cuda.get_device_properties: the driver does not say it of cuda:1",
          cuda.get_device_properties, 1)
      end)
      core.device_count, core._device_bus, core.memory_stats = unpack(kept)
      if not fine then error(err, 0) end
    end)
  end)
end)

describe("a name that is not there", function()
  it("is told with what to write", function()
    for text, read in pairs {
      ['there is no function IntTensor; instead: tensor.tensor(values, { dtype = "int32" })'] =
        function() return tensor.IntTensor end,
      ['there is no function LongTensor; instead: tensor.tensor(values, { dtype = "int64" })'] =
        function() return tensor.LongTensor end,
      ["there is no function Size; instead: a shape is a list of numbers"] =
        function() return tensor.Size end,
      ["there is no function __version__; instead: accelerate.__version__"] =
        function() return tensor.__version__ end,
      ["there is no function accelerator; instead: accelerate.Accelerator().device"] =
        function() return tensor.accelerator end,
      ["there is no function short; instead: no tensor has this type"] = function() return tensor.short end,
      ['there is no field or method "new"; instead: x:new_empty(sizes), or x:new_tensor(values)'] =
        function() return x.new end,
      ['there is no field or method "resize_"; instead: x:reshape(sizes)'] = function() return x.resize_ end,
      ['there is no field or method "record_stream"; instead: nothing: each process has one stream'] =
        function() return x.record_stream end,
      ["accelerate.nn has no 'DistributedDataParallel'; instead: accelerator:prepare(model)"] =
        function() return nn.DistributedDataParallel end,
      ["accelerate.nn has no 'parallel'; instead: accelerator:prepare(model)"] =
        function() return nn.parallel end,
      ["accelerate.nn has no 'modules'; instead: PyTorch's submodules are flat here: nn.Linear"] =
        function() return nn.modules end,
      ["accelerate.data has no 'sampler'; instead: PyTorch's submodules are flat here: data.RandomSampler"] =
        function() return data.sampler end,
      ["instead: PyTorch's submodules are flat here: data.DistributedSampler"] =
        function() return data.distributed end,
      ["accelerate.optim has no 'optimizer'; did you mean 'Optimizer'?"] =
        function() return optim.optimizer end,
      ["instead: PyTorch's submodules are flat here: distributions.AffineTransform"] =
        function() return D.transforms end,
      ["accelerate.distributions has no 'class'; instead: accelerate.utils.class("] =
        function() return D.class end,
      ["accelerate.distributions has no 'utils'; instead: nothing"] = function() return D.utils end,
      ["accelerate.distributions has no 'constraints'; instead: "] = function() return D.constraints end,
      ["accelerate.cuda has no 'set_device'; instead: the launcher chooses the GPU of each process"] =
        function() return cuda.set_device end,
      ["accelerate.cuda has no 'Stream'; instead: nothing: each process has one stream"] =
        function() return cuda.Stream end,
      ["utils has no 'tensorboard'; instead: accelerate.Accelerator { log_with = \"tensorboard\""] =
        function() return utils.tensorboard end,
      ["accelerate.utils has no 'ffi'; instead: require \"ffi\""] = function() return utils.ffi end,
      ["modules have no 'register_backward_hook': its hooks are register_full_backward_hook(hook)"] =
        function() return nn.Linear(1, 1).register_backward_hook end,
    } do
      raises(text, read)
    end
  end)

  it("of a type says how it is called here", function()
    raises('type: "torch.LongTensor" is x:to("int64")', x.type, x, "torch.LongTensor")
    raises('type: "torch.cuda.FloatTensor" is x:to("float32"):cuda()', x.type, x, "torch.cuda.FloatTensor")
    assert.equal("int64", x:type("int64").dtype)
    assert.equal("float32", x:type())
  end)
end)

describe("a value of PyTorch's that is not taken", function()
  it("is told with what to write", function()
    raises("data.class make other classes, accelerate.utils.class those of distributions", nn.class, "Own",
      D.Normal)
    local pool = nn.AdaptiveAvgPool2d
    raises("AdaptiveAvgPool2d: output_size: entry 1 of 2 is nil; -1 stands for the input's size", pool,
      { nil, 2 })
    raises("AdaptiveAvgPool2d: output_size: entry 1 of 2 is false; -1 stands for", pool, { false, 2 })
    raises("AdaptiveAvgPool2d: output_size: entry 2 of 2 is nil; -1 stands for", pool,
      { output_size = { 7, nil } })
    assert.same({ 1, 1, 4, 2 }, pool({ -1, 2 })(core.ones(1, 1, 4, 4)).shape)
    raises("add_module: unknown option 'modul'", nn.Module().add_module, nn.Module(),
      { name = "a", modul = 1 })
  end)
end)
