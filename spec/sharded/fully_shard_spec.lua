-- Beside PyTorch's fully_shard: spec/generators/gen_fully_shard_reference.py.
local json = require "accelerate.utils.json"
local ranks = require "spec.support.ranks"
local reference = require "spec.reference.fully_shard_reference"

-- train(policy): its losses, means over the ranks, and the norms of its gradients.
local TRAIN = [[
local nn, optim = require "accelerate.nn", require "accelerate.optim"
local F, state = require "accelerate.nn.functional", require "accelerate.state"
local STEPS, ROWS, VOCAB, WIDTH = 8, 8, 11, 16
local Block = nn.class "Block"
function Block:init()
  self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 40), nn.Linear(40, WIDTH)
end
function Block:forward(x) return x + self.down(F.gelu(self.up(self.norm(x)))) end
local Net = nn.class "Net"
function Net:init()
  self.tokens, self.h = nn.Embedding(VOCAB, WIDTH), nn.ModuleList { Block(), Block() }
  self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB)
end
function Net:forward(ids)
  local x = self.tokens(ids)
  for _, block in ipairs(self.h) do x = block(x) end
  return self.head(self.norm(x))
end
local function filled(net)
  local names, of = {}, {}
  for name, p in net:named_parameters() do names[#names + 1], of[name] = name, p end
  table.sort(names)
  core.no_grad(function()
    for k, name in ipairs(names) do
      local p = of[name]
      local values, more = {}, name:find("norm.weight", 1, true) and 1 or 0
      for i = 1, p:numel() do values[i] = math.sin((i - 1) * 1.3 + k - 1) * 0.3 + more end
      p:copy_(core.tensor(values):reshape(p.shape))
    end
  end)
  return net
end
local function train(policy)
  state.reset()
  local a = accelerate.Accelerator { cpu = true, fsdp_plugin = { fsdp_version = 2,
    auto_wrap_policy = "TRANSFORMER_BASED_WRAP", transformer_cls_names_to_wrap = { "Block" },
    mixed_precision_policy = policy } }
  local net = filled(Net())
  local model, optimizer = a:prepare(net, optim.SGD(net:parameters(), { lr = 0.2, momentum = 0.9 }))
  local all, rows = { losses = {}, norms = {} }, {}
  for i = 1, ROWS * 7 do rows[i] = ((i - 1) ^ 2 + rank * 3) % VOCAB end
  local ids = core.tensor(rows, { dtype = "int64" }):reshape(ROWS, 7)
  for _ = 1, STEPS do
    local logits = model(ids:narrow(2, 1, 6)):float():reshape(-1, VOCAB)
    local loss = F.cross_entropy(logits, ids:narrow(2, 2, 6):reshape(-1))
    a:backward(loss)
    all.norms[#all.norms + 1] = a:clip_grad_norm_(model:parameters(), 0.8):item()
    optimizer:step()
    optimizer:zero_grad()
    all.losses[#all.losses + 1] = accelerate.utils.reduce(loss:detach(), "mean"):item()
  end
  return all
end
local low, wide = "bfloat16", "float32"
local all = { float32 = train(nil),
  param_bf16 = train { param_dtype = low, reduce_dtype = wide, output_dtype = low },
  all_bf16 = train { param_dtype = low, reduce_dtype = low, output_dtype = low } }
if rank == 0 then print(accelerate.utils.json.encode(all)) end
]]

-- bfloat16 has 8 bits: PyTorch's layers round their results to it, and ours add up in float32.
local TOLERANCES = { float32 = 2e-6, param_bf16 = 0.02, all_bf16 = 0.02 }

describe("training beside PyTorch's fully_shard", function()
  for _, memory in ipairs { "shared", "gathered" } do
    it("gives its losses and norms, in float32 and under its policies, values " .. memory, function()
      local there = json.decode(ranks.ok(2, TRAIN,
        { launch = { "--cpu" }, env = { ACCEL_SHARED_PARAMETERS = memory == "shared" and "1" or "0" } }))
      for name, tolerance in pairs(TOLERANCES) do
        for key, numbers in pairs(reference[name]) do
          for i, x in ipairs(numbers) do
            local y = there[name][key][i]
            assert.is_true(math.abs(x - y) <= tolerance * x,
              ("%s, %s of step %d: %g beside %g"):format(name, key, i, y, x))
          end
        end
      end
    end)
  end
end)
