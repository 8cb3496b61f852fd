-- Training on ranks: the same result as on one, and the same bits in every run.
local ranks = require "spec.support.ranks"

describe("training", function()
  it("gives two ranks with batch 32 the parameters of one rank with batch 64", function()
    local SCRIPT = [[
      local nn, optim, data = require "accelerate.nn", require "accelerate.optim", require "accelerate.data"
      accelerate.utils.set_seed(3)
      local accelerator = accelerate.Accelerator()
      local Net = nn.class("Net")
      function Net:init() self.first, self.second = nn.Linear(20, 32), nn.Linear(32, 5) end
      function Net:forward(x) return self.second(self.first(x):relu()) end
      local x = core.randn(1000, 20)
      local y = core.randint(0, 5, { 1000 })
      local model = Net()
      local kind = arg[2]
      local optimizer = kind == "adamw" and optim.AdamW(model:parameters(), { lr = 0.003 })
        or optim.SGD(model:parameters(), { lr = 0.05, momentum = 0.9, weight_decay = 0.01 })
      local loader = data.DataLoader(data.TensorDataset(x, y),
        { batch_size = 64 / ranks, shuffle = true, drop_last = true })
      model, optimizer, loader = accelerator:prepare(model, optimizer, loader)
      local steps = 0
      while steps < 50 do
        for a, b in loader:iter() do
          accelerator:backward(nn.functional.cross_entropy(model(a), b))
          accelerator:clip_grad_norm_(model:parameters(), 1.0)
          optimizer:step()
          optimizer:zero_grad()
          steps = steps + 1
          if steps == 50 then break end
        end
      end
      accelerator:print(accelerate.utils.json.encode((function()
        local all = {}
        for _, p in ipairs(model:parameters()) do
          for _, v in ipairs(p:detach():reshape(-1):totable()) do all[#all + 1] = v end
        end
        return all
      end)()))
    ]]
    local json = require "accelerate.utils.json"
    for _, kind in ipairs { "sgd", "adamw" } do
      local one = json.decode(ranks.ok(1, SCRIPT, { arguments = { "x", kind } }))
      local two = json.decode(ranks.ok(2, SCRIPT, { arguments = { "x", kind } }))
      assert.are.equal(20 * 32 + 32 + 32 * 5 + 5, #one)
      local worst = 0
      for i = 1, #one do worst = math.max(worst, math.abs(one[i] - two[i])) end
      assert.is_true(worst <= 1e-5, kind .. ": parameters differ by " .. worst)
      assert.is_true(#two == #one)
    end
  end)

  it("with accumulation gives what one large batch gives", function()
    ranks.ok(2, [[
      local nn, optim = require "accelerate.nn", require "accelerate.optim"
      accelerate.utils.set_seed(1)
      local accelerator = accelerate.Accelerator { gradient_accumulation_steps = 4 }
      local x, y = core.randn(64, 6), core.randn(64, 2)
      local function make()
        core.manual_seed(9)
        local model = nn.Linear(6, 2)
        return model, optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 })
      end
      local reference, plain = make()
      local model, optimizer = accelerator:prepare(make())
      for round = 1, 5 do
        for micro = 0, 3 do
          accelerator:accumulate(model, function()
            local from = micro * 16 + rank * 8 + 1
            accelerator:backward((model(x:narrow(1, from, 8)) - y:narrow(1, from, 8)):square():mean())
            optimizer:step()
            optimizer:zero_grad()
          end)
        end
        (function() (reference(x) - y):square():mean():backward() end)()
        plain:step()
        plain:zero_grad()
        check((model.weight - reference.weight):abs():max():item() < 1e-5, "round " .. round)
      end
    ]])
  end)

  it("gives the same bits in ten fresh runs, with threads, nested batches, " ..
    "dropout and a class of the script's own", function()
    local SCRIPT = [[
      local nn, optim, data = require "accelerate.nn", require "accelerate.optim", require "accelerate.data"
      local ffi = require "ffi"
      local accelerator = accelerate.Accelerator { gradient_accumulation_steps = 2 }

      local Samples = data.class("Samples")
      function Samples:get(i)
        return { image = core.full({ 300 }, (i * 7 % 13) / 13),
          meta = { label = i % 4, extra = { weight = 1 + i % 2, name = "n" .. i } } }
      end
      function Samples:len() return 401 end

      local Block = nn.class("Block")
      function Block:init(width)
        self.norm_free, self.drop = nn.Linear(width, width), nn.Dropout(0.3)
        self.scale = nn.Parameter(core.ones(width))
      end
      function Block:forward(x) return x + self.drop(self.norm_free(x):tanh()) * self.scale end

      local Net = nn.class("Net")
      function Net:init()
        self.input, self.head = nn.Linear(300, 256), nn.Linear(256, 4)
        self.blocks = nn.Sequential(Block(256), Block(256))
      end
      function Net:forward(batch) return { logits = self.head(self.blocks(self.input(batch.image))) } end

      local model = Net()
      local loader = data.DataLoader(Samples(), { batch_size = 16, shuffle = true })
      local optimizer = optim.AdamW(model:parameters(), { lr = 1e-3 })
      local scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, { T_max = 60 })
      model, optimizer, loader, scheduler = accelerator:prepare(model, optimizer, loader, scheduler)
      for epoch = 1, 2 do
        for batch in loader:iter() do
          accelerator:accumulate(model, function()
            local out = model(batch)
            local loss = (nn.functional.cross_entropy(out.logits, batch.meta.label,
              { reduction = "none" }) * batch.meta.extra.weight):mean()
            accelerator:backward(loss)
            if accelerator.sync_gradients then accelerator:clip_grad_norm_(model:parameters(), 1.0) end
            optimizer:step()
            scheduler:step()
            optimizer:zero_grad()
          end)
        end
      end
      -- every bit of every parameter, and the same on all ranks
      local sums = {}
      for name, p in model:named_parameters() do
        local t, sum = p:detach():contiguous(), 0
        local words = ffi.cast("const uint32_t *", t:data_ptr())
        for i = 0, t:numel() - 1 do sum = (sum * 31 + words[i]) % 4294967291 end
        sums[#sums + 1] = name .. "=" .. ("%.0f"):format(sum)
      end
      local mine = table.concat(sums, " ")
      for _, other in ipairs(core.dist.all_gather_bytes(mine)) do
        check(other == mine, "ranks hold different bits")
      end
      accelerator:print(mine, core.get_num_threads())
    ]]
    local first
    for run = 1, 10 do
      local out = ranks.ok(2, SCRIPT, { launch = { "--num_cpu_threads_per_process", "2" } })
      first = first or out
      assert.are.equal(first, out, "run " .. run)
    end
    assert.matches("\t2\n$", first)
  end)
end)
