-- from_pretrained holds a model once: no form of its files is in memory beside it.
local core = require "accelerate.core"
local host = require "spec.support.host"
local loading = require "accelerate.big_modeling.loading"
local models = require "accelerate.models"

local BIG = { n_embd = 128, n_layer = 6, n_head = 2, vocab_size = 3000 }

-- Writes the model's folder, and returns its bytes.
local function save(folder, opts, dtype)
  local model = models.GPT2LMHeadModel(BIG):to(dtype or "float32")
  model:save_pretrained(folder, opts)
  local all = 0
  for _, p in ipairs(model:parameters()) do all = all + p:numel() * p:element_size() end
  return all
end

-- The most bytes of tensors while a folder's weights are loaded, beyond those that were there. What
-- making the model without weights leaves to the collector, memory that nothing has written, does
-- not count.
local function peak_of(folder, dtype)
  local function collect()
    collectgarbage()
    collectgarbage()
  end
  collect()
  local before, fill = core.memory_stats().live_bytes, loading.fill
  loading.fill = function(...)
    collect()
    core.reset_peak_memory_stats()
    return fill(...)
  end
  local fine, model = pcall(models.from_pretrained, folder, { dtype = dtype })
  loading.fill = fill
  assert(fine, model)
  return core.memory_stats().peak_bytes - before, model
end

describe("from_pretrained of", function()
  local CASES = {
    { "safetensors", {} }, { "safetensors in float32, to bfloat16", {}, "bfloat16" },
    { "safetensors in bfloat16, to float32", {}, "float32", "bfloat16" },
    { "shards", { max_shard_size = "500KB" } },
    { "shards, to bfloat16", { max_shard_size = "500KB" }, "bfloat16" },
    { "PyTorch's file", { safe_serialization = false } },
    { "PyTorch's file, to bfloat16", { safe_serialization = false }, "bfloat16" },
    { "PyTorch's shards", { safe_serialization = false, max_shard_size = "500KB" } },
  }
  for _, case in ipairs(CASES) do
    local what, opts, dtype, stored = unpack(case)
    it(what .. " holds the model once, its ties and turned matrices too", function()
      host.in_folder(function(folder)
        local bytes = save(folder, opts, stored)
        if dtype and not stored then bytes = bytes / 2 elseif stored then bytes = bytes * 2 end
        local peak, model = peak_of(folder, dtype)
        assert.equal(dtype or "float32", model.dtype)
        assert.is_true(peak <= 1.02 * bytes, ("%d bytes for %d"):format(peak, bytes))
      end)
    end)
  end

  it("PyTorch's file leaves nothing in the file, which may go", function()
    host.in_folder(function(folder)
      save(folder, { safe_serialization = false })
      local model = models.from_pretrained(folder)
      local before = model.transformer.wte.weight:clone()
      local f = assert(io.open(folder .. "/pytorch_model.bin", "w"))
      f:close()
      assert.is_true(model.transformer.wte.weight:eq(before):all():item())
      assert.is_true(model.transformer.h[1].attn.c_attn.weight:isfinite():all():item())
    end)
  end)
end)
