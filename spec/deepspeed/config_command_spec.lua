-- commands/config_deepspeed.lua: the questions of accel-run config about DeepSpeed.
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local yaml = require "accelerate.utils.yaml"

-- The configuration that answers make; those before are about ranks, types and FSDP.
local function config_of(folder, answers, machines)
  local before = machines or "multi-CPU\n1\nno\n4\nno\nno\n"
  local status, out, err = host.run({ "config" }, { folder = folder, env = { HF_HOME = folder .. "/hf" },
    stdin = before .. answers })
  assert(status == 0, out .. err)
  return yaml.decode(assert(fs.read(folder .. "/hf/accelerate/default_config.yaml")))
end

describe("accel-run config", function()
  it("asks about DeepSpeed, and writes what runs take", function()
    host.in_folder(function(folder)
      local config = config_of(folder, "yes\nno\n4\nnvme\n/a\ncpu\n2\nyes\n0\n0.5\n")
      assert.are.equal("DEEPSPEED", config.distributed_type)
      assert.are.same({ zero_stage = 3, offload_optimizer_device = "nvme", offload_optimizer_nvme_path = "/a",
        offload_param_device = "cpu", gradient_accumulation_steps = 2, gradient_clipping = 0.5 },
        config.deepspeed_config)
      local status, out, err = host.run({ "--explain" },
        { folder = folder, env = { HF_HOME = folder .. "/hf" } })
      assert(status == 0, err)
      for _, pattern in ipairs { "use_deepspeed +true ", "zero_stage +3 ", "gradient_clipping +0.5 " } do
        assert.is_truthy(out:find(pattern), out)
      end
      config = config_of(folder, "yes\n\n\n\n\n\n")
      assert.are.same({ zero_stage = 2, offload_optimizer_device = "none", gradient_accumulation_steps = 1 },
        config.deepspeed_config)
    end)
  end)

  it("leaves to a DeepSpeed file what stands in it", function()
    host.in_folder(function(folder)
      local config = config_of(folder, "yes\nyes\nds.json\n")
      assert.are.same({ deepspeed_config_file = "ds.json" }, config.deepspeed_config)
      assert.is_nil(config.mixed_precision)
    end)
  end)

  it("asks who starts several machines", function()
    host.in_folder(function(folder)
      local config = config_of(folder, "yes\nyes\nds.json\n2\n\nhosts\n",
        "multi-CPU\n2\n0\n10.0.0.1\n29500\nno\n4\nno\nno\n")
      assert.are.same({ deepspeed_config_file = "ds.json", deepspeed_multinode_launcher = "openmpi",
        deepspeed_hostfile = "hosts" }, config.deepspeed_config)
    end)
  end)
end)
