-- `make bench`: our benchmarks beside PyTorch's, in one run, as ratios (their time over ours).
--
--   accel-run bench/run.lua
--
-- Environment:
--   PYTHON      an interpreter that can import torch (default: python3)
--   ROUNDS      how often everything is measured; medians of the rounds are shown (default 5; rows
--               that run for minutes: at most 2)
--   ONLY        a Lua pattern: only the rows whose name it matches (such as "batch 64" or
--               "all%-reduce")
--   QUIET_WAIT  seconds to wait, before each measurement, for other processes to leave the machine
--               alone (default 30)
--   LIMIT       seconds after which a command is stopped (default 300); its side of the row is left
--               out
--
-- A row is shown as soon as its rounds are over, so a run that is stopped has shown what it
-- measured. PyTorch runs as installed and at its best setting without changes to a script's model:
-- glibc keeps big blocks instead of mapping fresh pages for each, AVX-512 kernels on where the
-- processor has them, the fused optimizer.  The sides take turns, round after round, since machines
-- drift.
local here = arg[0]:match("^(.*)/") or "."
local host = os.getenv("ACCEL_RUN") or "build/accel-run"
local rounds = tonumber(os.getenv("ROUNDS") or 5)
local only = os.getenv("ONLY") or ""
local quiet_wait = tonumber(os.getenv("QUIET_WAIT") or 30)
local limit = tonumber(os.getenv("LIMIT") or 300)

-- name, unit, field of the line of JSON, then: script (ours and peer/<script>.py), ours, peer
-- (arguments), needs (a package of the peer's), ranks, threads (of each rank), best (flags of
-- PyTorch's best setting; several: each is measured and the best counts).  scale: nothing is run;
-- the row says how much more work two ranks do in a second than one, each with a batch of its own:
-- twice the time of the first row named over that of the second.  rounds: at most so many, where a
-- run takes long.
local ATTENTION = { "--fused", "--fused --plain-attention 1" }
local PLAIN = { "--plain-attention 0" } -- fused steps over fully_shard did not end
local ROWS = {
  { "start-up: nothing to do (import torch)", "ms", "empty_ms", script = "startup" },
  { "start-up: the first step of an MLP", "ms", "step_ms", script = "startup" },
  { "MLP step, batch 64, 1 rank", "ms", "step_ms", script = "mlp", ours = "64", peer = "--batch 64" },
  { "MLP step, batch 512, 1 rank", "ms", "step_ms", script = "mlp", ours = "512 120 20",
    peer = "--batch 512 --steps 120 --warmup 20" },
  { "MLP step, batch 512, 2 threads", "ms", "step_ms", script = "mlp", ours = "512 120 20",
    peer = "--batch 512 --steps 120 --warmup 20", threads = 2 },
  { "MLP step, batch 64 each, 2 ranks", "ms", "step_ms", script = "mlp", ranks = 2, ours = "64",
    peer = "--batch 64" },
  { "the same: two ranks over one", "x",
    scale = { "MLP step, batch 64, 1 rank", "MLP step, batch 64 each, 2 ranks" } },
  { "GPT step (4 x 128), 1 thread", "ms", "step_ms", script = "gpt", ours = "tiny 30 5",
    peer = "--preset tiny", best = ATTENTION },
  { "GPT step (4 x 128), 2 threads", "ms", "step_ms", script = "gpt", ours = "tiny 30 5",
    peer = "--preset tiny", threads = 2, best = ATTENTION },
  { "GPT step (4 x 128), 2 ranks", "ms", "step_ms", script = "gpt", ranks = 2, ours = "tiny 30 5",
    peer = "--preset tiny", best = ATTENTION },
  { "the same: two ranks over one", "x",
    scale = { "GPT step (4 x 128), 1 thread", "GPT step (4 x 128), 2 ranks" } },
  { "GPT step (4 x 128), 2 threads: memory of the process beyond its start", "MB", "step_mb", script = "gpt",
    ours = "tiny 30 5", peer = "--preset tiny", threads = 2, best = ATTENTION },
  { "GPT step (6 x 384), 1 thread", "ms", "step_ms", script = "gpt", ours = "small 5 2",
    peer = "--preset small --steps 5 --warmup 2", best = ATTENTION },
  { "GPT step (6 x 384), 2 threads", "ms", "step_ms", script = "gpt", ours = "small 5 2",
    peer = "--preset small --steps 5 --warmup 2", threads = 2, best = ATTENTION },
  { "GPT step (6 x 384), 2 ranks", "ms", "step_ms", script = "gpt", ranks = 2, ours = "small 5 2",
    peer = "--preset small --steps 5 --warmup 2", best = ATTENTION },
  { "GPT step (4 x 128), 2 ranks, fully sharded", "ms", "step_ms", script = "gpt", ranks = 2,
    ours = "tiny 30 5 --sharded", peer = "--preset tiny --sharded 1", best = PLAIN },
  { "GPT step (6 x 384), 2 ranks, fully sharded", "ms", "step_ms", script = "gpt", ranks = 2,
    ours = "small 5 2 --sharded", peer = "--preset small --steps 5 --warmup 2 --sharded 1",
    best = PLAIN },
  { "GPT step (4 x 128), 2 ranks, ZeRO-1 (ZeroRedundancyOptimizer)", "ms", "step_ms", script = "gpt",
    ranks = 2, ours = "tiny 30 5 --zero1", peer = "--preset tiny --zero1 1", best = ATTENTION },
  { "GPT step (6 x 384), 2 ranks, ZeRO-1 (ZeroRedundancyOptimizer)", "ms", "step_ms", script = "gpt",
    ranks = 2, ours = "small 5 2 --zero1", peer = "--preset small --steps 5 --warmup 2 --zero1 1",
    best = ATTENTION },
  { "BERT step (2 x 128), 1 thread", "ms", "step_ms", script = "bert", ours = "tiny 30 3",
    peer = "--preset tiny", best = ATTENTION },
  { "BERT step (2 x 128), 2 threads", "ms", "step_ms", script = "bert", ours = "tiny 30 3",
    peer = "--preset tiny", threads = 2, best = ATTENTION },
  { "BERT fine-tuning step (4 x 256) beside Transformers, 1 thread", "ms", "step_ms", script = "finetune",
    ours = "mini 10 2", peer = "--preset mini --steps 10 --warmup 2", best = { "--fused" } },
  { "GPT-2 generation (2 x 256) beside Transformers, a token, 1 thread", "ms", "token_ms",
    script = "generate", ours = "tiny 100 3", peer = "--preset tiny --tokens 100 --rounds 3" },
  { "GPT-2 generation (6 x 256) beside Transformers, a token, 1 thread", "ms", "token_ms",
    script = "generate", ours = "small 60 3", peer = "--preset small --tokens 60 --rounds 3" },
  { "GPT-2 generation (124M) beside Transformers, a token, 1 thread", "ms", "token_ms", script = "generate",
    ours = "124m 20 2", peer = "--preset 124m --tokens 20 --rounds 2", rounds = 2 },
  { "GPT-2 generation (124M) beside Transformers, a token, 2 threads", "ms", "token_ms", threads = 2,
    script = "generate", ours = "124m 20 2", peer = "--preset 124m --tokens 20 --rounds 2", rounds = 2 },
  { "GPT-2 generation (124M, bfloat16 weights) beside Transformers, a token, 1 thread", "ms", "token_ms",
    script = "generate", ours = "124m 20 2 bfloat16",
    peer = "--preset 124m --tokens 20 --rounds 2 --dtype bfloat16", rounds = 2 },
  { "GPT-2 generation (124M, bfloat16 weights) beside Transformers, a token, 2 threads", "ms", "token_ms",
    script = "generate", ours = "124m 20 2 bfloat16", threads = 2,
    peer = "--preset 124m --tokens 20 --rounds 2 --dtype bfloat16", rounds = 2 },
  { "GPT-2 generation (124M, prompt lookup of 7) beside Transformers, a token, 1 thread", "ms", "token_ms",
    script = "generate", ours = "124m 40 2 float32 7",
    peer = "--preset 124m --tokens 40 --rounds 2 --lookup 7", rounds = 2 },
  { "GPT-2 generation (124M in nf4, last layer in float32) beside bitsandbytes, a token, 1 thread", "ms",
    "token_ms", script = "generate", ours = "124m 20 2 float32 0 nf4",
    peer = "--preset 124m --tokens 20 --rounds 2 --encoding nf4", rounds = 2 },
  { "the same model in float32, in turns with nf4", "ms", "plain_ms", script = "generate",
    ours = "124m 20 2 float32 0 nf4", rounds = 2,
    peer = "--preset 124m --tokens 20 --rounds 2 --encoding nf4" },
  { "GPT-2 generation (124M in int8, last layer in float32) beside bitsandbytes, a token, 1 thread", "ms",
    "token_ms", script = "generate", ours = "124m 20 2 float32 0 int8",
    peer = "--preset 124m --tokens 20 --rounds 2 --encoding int8", rounds = 2 },
  { "the same model in float32, in turns with int8", "ms", "plain_ms", script = "generate",
    ours = "124m 20 2 float32 0 int8", rounds = 2,
    peer = "--preset 124m --tokens 20 --rounds 2 --encoding int8" },
  { "GPT-2 generation (124M in nf4, last layer too), a token, 1 thread", "ms", "token_ms",
    script = "generate", ours = "124m 20 2 float32 0 nf4 encoded",
    peer = "--preset 124m --tokens 20 --rounds 2 --encoding nf4", rounds = 2 },
  { "GPT-2 generation (124M in nf4, the rest in bfloat16) beside bitsandbytes, a token, 1 thread", "ms",
    "token_ms", script = "generate", ours = "124m 20 2 bfloat16 0 nf4",
    peer = "--preset 124m --tokens 20 --rounds 2 --dtype bfloat16 --encoding nf4", rounds = 2 },
  { "24 linear layers (2048) in a file beside Accelerate, a pass, in the page cache, 1 thread", "ms",
    "warm_ms", script = "offload", ours = "2048 5", peer = "--width 2048 --rounds 5" },
  { "24 linear layers (2048) in a file beside Accelerate, a pass, cold, 1 thread", "ms", "cold_ms",
    script = "offload", ours = "2048 5", peer = "--width 2048 --rounds 5" },
  { "the same layers in memory (Accelerate's in memory, too)", "ms", "memory_ms", script = "offload",
    ours = "2048 5", peer = "--width 2048 --rounds 5" },
  { "a plain read of their file, cold", "ms", "read_ms", script = "offload", ours = "2048 5",
    peer = "--width 2048 --rounds 5" },
  { "LSTM step (2 x 256, 16 x 64 tokens), 1 thread", "ms", "step_ms", script = "lstm", ours = "20 3" },
  { "LSTM step (2 x 256, 16 x 64 tokens), 2 threads", "ms", "step_ms", script = "lstm", ours = "20 3",
    threads = 2 },
  { "deep Q-learning step: tiny ops", "ms", "step_ms", script = "dqn", ours = "500 50" },
  { "CNN step, batch 64", "ms", "step_ms", script = "cnn", ours = "64", peer = "--batch 64",
    best = { "--fused", "--fused --channels-last 1" } },
  { "CNN step, batch 64, 2 threads", "ms", "step_ms", script = "cnn", ours = "64", peer = "--batch 64",
    threads = 2,
    best = { "--fused", "--fused --channels-last 1" } },
  { "CNN step, batch 64, residual and ReLU in the batch norms", "ms", "step_ms", script = "cnn",
    ours = "64 --fused", peer = "--batch 64",
    best = { "--fused", "--fused --channels-last 1" } },
  { "CNN step, batch 64, bf16", "ms", "step_ms", script = "cnn", ours = "64 --dtype bf16",
    peer = "--batch 64 --dtype bf16",
    best = { "--fused", "--fused --channels-last 1" } },
  { "U-Net step (64 channels, 16 x 32 x 32), 1 thread", "ms", "step_ms", script = "unet", ours = "small 10 2",
    best = { "--fused", "--fused --channels-last 1" } },
  { "U-Net step (64 channels, 16 x 32 x 32), 2 threads", "ms", "step_ms", script = "unet",
    ours = "small 10 2", threads = 2, best = { "--fused", "--fused --channels-last 1" } },
  { "MLP step, batch 64, bfloat16", "ms", "step_ms", script = "mlp", ours = "64 --dtype bf16",
    peer = "--batch 64 --dtype bf16" },
  { "MLP step, batch 512, bfloat16", "ms", "step_ms", script = "mlp", ours = "512 120 20 --dtype bf16",
    peer = "--batch 512 --steps 120 --warmup 20 --dtype bf16" },
  { "GPT step (4 x 128), bfloat16", "ms", "step_ms", script = "gpt", ours = "tiny 30 5 --dtype bf16",
    peer = "--preset tiny --dtype bf16", best = ATTENTION },
  { "GPT step (6 x 384), bfloat16", "ms", "step_ms", script = "gpt", ours = "small 5 2 --dtype bf16",
    peer = "--preset small --steps 5 --warmup 2 --dtype bf16", best = ATTENTION, rounds = 2 },
  { "GPT step (4 x 128), fp8 rounded on a CPU, beside torchao's emulation", "ms", "step_ms", script = "gpt",
    ours = "tiny 10 2 --dtype fp8", peer = "--preset tiny --steps 10 --warmup 2 --dtype fp8", best = {},
    needs = "torchao", rounds = 2 },
  { "BERT step (2 x 128), bfloat16", "ms", "step_ms", script = "bert", ours = "tiny 30 3 --dtype bf16",
    peer = "--preset tiny --dtype bf16", best = ATTENTION },
  { "tokenizing, byte-level BPE, 1 thread", "ms", "bpe_ms", script = "tokenizing", rounds = 2 },
  { "tokenizing, WordPiece, 1 thread", "ms", "wordpiece_ms", script = "tokenizing", rounds = 2 },
  { "tokenizing, unigram, 1 thread", "ms", "unigram_ms", script = "tokenizing", rounds = 2 },
  { "all-reduce, 1 KB, 2 ranks", "us", "1KB_us", script = "allreduce", ranks = 2 },
  { "all-reduce, 1 MB, 2 ranks", "us", "1MB_us", script = "allreduce", ranks = 2 },
  { "all-reduce, 64 MB, 2 ranks", "us", "64MB_us", script = "allreduce", ranks = 2 },
  { "all-reduce of a model's gradients, 64 MB, 2 ranks", "us", "gradients_us", script = "allreduce",
    ranks = 2 },
  { "AdamW, 16M parameters", "ms", "adamw_ms", script = "optim" },
  { "SGD with momentum, 16M parameters", "ms", "momentum_ms", script = "optim" },
  { "Adagrad, 16M parameters", "ms", "adagrad_ms", script = "optim" },
  { "RMSprop, 16M parameters", "ms", "rmsprop_ms", script = "optim" },
  { "Adafactor, 16M parameters", "ms", "adafactor_ms", script = "optim" },
  { "checkpoint of 500 MB: save_state (Accelerate's)", "ms", "save_state_ms", script = "checkpoint" },
  { "checkpoint of 500 MB: load_state (Accelerate's)", "ms", "load_state_ms", script = "checkpoint" },
  { "checkpoint of 500 MB: utils.save (torch.save)", "ms", "save_ms", script = "checkpoint" },
  { "checkpoint of 500 MB: utils.load (torch.load)", "ms", "load_ms", script = "checkpoint" },
  { "checkpoint of 500 MB: an asynchronous save_state stops the training", "ms", "stop_ms",
    script = "checkpoint" },
  { "checkpoint of 500 MB: cp and sync of its bytes", "ms", "copy_ms", script = "checkpoint" },
  { "checkpoint of 500 MB: reading its bytes", "ms", "read_ms", script = "checkpoint" },
  { "add of 4 elements", "ns", "plain_ns", script = "ops" },
  { "the same, recorded for autograd", "ns", "recorded_ns", script = "ops" },
  { "the same, with its backward", "ns", "backward_ns", script = "ops" },
  { "copy of 64 MB, 1 thread", "ms", "copy_ms", script = "bandwidth" },
  { "gelu (tanh) of 64 MB", "ms", "gelu_ms", script = "bandwidth" },
  { "the same, with its gradient", "ms", "gelu_grad_ms", script = "bandwidth" },
  { "softmax of 64 MB", "ms", "softmax_ms", script = "bandwidth" },
  { "the same, with its gradient", "ms", "softmax_grad_ms", script = "bandwidth" },
  { "layer norm of 64 MB", "ms", "layernorm_ms", script = "bandwidth" },
  { "the same, with its gradient", "ms", "layernorm_grad_ms", script = "bandwidth" },
  { "cross-entropy of 64 MB", "ms", "cross_entropy_ms", script = "bandwidth" },
  { "the same, with its gradient", "ms", "cross_entropy_grad_ms", script = "bandwidth" },
  { "solve, 512 x 512, 8 sides", "ms", "solve_ms", script = "linalg" },
  { "the same, with its backward", "ms", "solve_backward_ms", script = "linalg" },
  { "inverse, 512 x 512", "ms", "inv_ms", script = "linalg" },
  { "Cholesky, 512 x 512", "ms", "cholesky_ms", script = "linalg" },
  { "QR, 512 x 512", "ms", "qr_ms", script = "linalg" },
  { "singular values and vectors, 512 x 512", "ms", "svd_ms", script = "linalg" },
  { "symmetric eigenvalues and vectors, 512 x 512", "ms", "eigh_ms", script = "linalg" },
  { "determinant, 1024 x 1024", "ms", "det_ms", script = "linalg" },
  { "eigenvalues of any matrix, 256 x 256", "ms", "eig_ms", script = "linalg" },
  { "solve, 1024 x 1024, 8 sides, 2 threads", "ms", "solve_large_ms", script = "linalg", threads = 2 },
  { "inverse, 512 x 512, 2 threads", "ms", "inv_ms", script = "linalg", threads = 2 },
  { "QR, 512 x 512, 2 threads", "ms", "qr_ms", script = "linalg", threads = 2 },
  { "singular values and vectors, 512 x 512, 2 threads", "ms", "svd_ms", script = "linalg", threads = 2 },
  { "symmetric eigenvalues and vectors, 512 x 512, 2 threads", "ms", "eigh_ms", script = "linalg",
    threads = 2 },
  { "eigenvalues of any matrix, 256 x 256, 2 threads", "ms", "eig_ms", script = "linalg", threads = 2 },
  { "128 systems of 8 unknowns", "ms", "solve_few_ms", script = "linalg" },
  { "128 inverses, 8 x 8", "ms", "inv_few_ms", script = "linalg" },
  { "2000 systems of 16 unknowns", "ms", "solve_batch_ms", script = "linalg" },
  { "2000 determinants, 16 x 16", "ms", "det_batch_ms", script = "linalg" },
  { "sparse matrix (20000 x 20000, 200000 values) times 64 columns", "ms", "sparse_mm_ms",
    script = "sparse" },
  { "the same, with its gradient", "ms", "sparse_mm_backward_ms", script = "sparse" },
  { "the same, also with that of the values", "ms", "sparse_mm_both_ms", script = "sparse" },
  { "Fourier transforms of 256 lines of 1024", "ms", "fft_ms", script = "fft" },
  { "the same of real lines", "ms", "rfft_ms", script = "fft" },
  { "of one line of 1048576", "ms", "fft_long_ms", script = "fft" },
  { "of 64 lines of 1009, a prime", "ms", "fft_prime_ms", script = "fft" },
  { "of an image, 512 x 512", "ms", "fft2_ms", script = "fft" },
  { "spectrograms of 8 signals, with their gradient", "ms", "stft_backward_ms", script = "fft" },
  { "grid_sample, 4 x 16 x 64 x 64", "ms", "grid_sample_ms", script = "functions" },
  { "the same, with its gradient", "ms", "grid_sample_backward_ms", script = "functions" },
  { "unfold, 8 x 32 x 56 x 56, 3 x 3", "ms", "unfold_ms", script = "functions" },
  { "fold of its result", "ms", "fold_ms", script = "functions" },
  { "scatter_reduce, 256 x 1024", "ms", "scatter_reduce_ms", script = "functions" },
  { "multinomial: 8 of 1024, 256 rows", "ms", "multinomial_ms", script = "functions" },
  { "sort of 256 lines of 1024", "ms", "sort_ms", script = "functions" },
  { "the 10 largest of 256 lines of 1024", "ms", "topk_ms", script = "functions" },
  { "product of float64 matrices, 512 x 512", "ms", "mm_double_ms", script = "functions" },
}

local function read(path)
  local f = assert(io.open(path))
  local text = f:read("*a")
  f:close()
  return text
end

--- The output of a command and its exit status; 124 where it took more seconds than it may.
local function capture(command, seconds)
  local pipe = assert(io.popen(("timeout --foreground %g env %s; echo status $?"):format(seconds, command)))
  local text = pipe:read("*a")
  pipe:close()
  local status = tonumber(text:match("status (%d+)%s*$"))
  return text:gsub("status %d+%s*$", ""), status
end

--- Seconds of processor time that the whole machine has used, all cores together.
local function busy_seconds()
  local user, nice, system, _, _, irq, soft, steal = read("/proc/stat"):match("^cpu%s+" ..
    ("(%d+)%s+"):rep(8))
  return (user + nice + system + irq + soft + steal) / 100
end

local noisy = false

--- Waits until others use less than 0.15 of a core, or `quiet_wait` is over.
local function wait_quiet()
  for _ = 1, quiet_wait do
    local before = busy_seconds()
    os.execute("sleep 1")
    if busy_seconds() - before < 0.15 then return end
  end
  noisy = noisy or quiet_wait > 0
end

local function number(line, field)
  return tonumber(line:match(('"%s": ([-+.%%deE]+)'):format(field)))
end

local function text(line, field)
  return line:match(('"%s": "([^"]*)"'):format(field)) or "?"
end

local function median(values)
  table.sort(values)
  local n = #values
  if n == 0 then return nil end
  return n % 2 == 1 and values[(n + 1) / 2] or (values[n / 2] + values[n / 2 + 1]) / 2
end

-- The sides: each turns a row into a command.
local cpuinfo = read("/proc/cpuinfo")
local python = os.getenv("PYTHON") or "python3"
local BEST = "MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=8589934592 " ..
  (cpuinfo:find("avx512vl", 1, true) and "ATEN_CPU_CAPABILITY=avx512 " or "")

local function peer(environment, flags)
  return function(row)
    return ("%s PYTHONWARNINGS=ignore '%s' '%s/peer/%s.py' --threads %d --ranks %d %s %s"):format(
      environment, python, here, row.script, row.threads or 1, row.ranks or 1, row.peer or "", flags(row))
  end
end

local function settings_of(row) return row.best or { "--fused" } end

local most_settings = 1
for _, row in ipairs(ROWS) do most_settings = math.max(most_settings, #settings_of(row)) end

local sides = {
  { name = "accel", command = function(row)
    return ("'%s' --num_processes %d --num_cpu_threads_per_process %d '%s/%s.lua' %s"):format(
      host, row.ranks or 1, row.threads or 1, here, row.script, row.ours or "")
  end },
}
local function can_import(package)
  local _, status = capture(("'%s' -W ignore -c 'import %s' 2>/dev/null"):format(python, package), 300)
  return status == 0
end
local has_torch = can_import "torch"
if has_torch then
  sides[2] = { name = "PyTorch as installed", command = peer("", function() return "" end) }
  for k = 1, most_settings do
    sides[2 + k] = { name = "PyTorch at its best", setting = k,
      command = peer(BEST, function(row) return settings_of(row)[k] end) }
  end
else
  print(("bench: '%s' cannot import torch, so only our side is measured; " ..
    "set PYTHON to an interpreter that can\n"):format(python))
end

-- Rows that share a script and its arguments share a run.
local runs, by_key = {}, {}
for _, row in ipairs(ROWS) do
  if not row.scale and row[1]:find(only) then
    local key = sides[1].command(row)
    if not by_key[key] then
      by_key[key] = { first = row, rows = {}, over = {} }
      runs[#runs + 1] = by_key[key]
    end
    table.insert(by_key[key].rows, row)
    row.values, row.memory = {}, {}
    for k = 1, #sides do row.values[k], row.memory[k] = {}, {} end
  end
end
local COST = "what the Accelerator costs on one rank"
if #runs == 0 and not COST:find(only) then error(("ONLY=%q matches no row"):format(only), 0) end

local about, failed = {}, false
-- Measures a run on all sides and adds the numbers to its rows.
local function measure(run)
  local needs = run.first.needs
  if needs and run.met == nil then
    run.met = has_torch and can_import(needs)
    if not run.met then
      print(("bench: %s: the peer needs %s, which is not there"):format(run.first[1], needs))
    end
  end
  for s, side in ipairs(sides) do
    if (s == 1 or not needs or run.met) and not run.over[s]
      and (not side.setting or settings_of(run.first)[side.setting]) then
      wait_quiet()
      local line, status = capture(side.command(run.first), limit)
      if status == 0 then
        about[s] = line
        for _, row in ipairs(run.rows) do
          table.insert(row.values[s], number(line, row[3]))
          table.insert(row.memory[s], number(line, "peak_mb"))
        end
      elseif status == 124 then
        run.over[s] = true
        io.stderr:write(("over the limit of %g s: %s\n"):format(limit, side.command(run.first)))
      else
        failed = true -- the other rows are shown all the same
        io.stderr:write(("failed: %s\n%s\n"):format(side.command(run.first), line))
      end
    end
  end
end

-- ---- the table

local function show(value)
  return not value and "" or (value >= 100 and "%.0f" or value >= 10 and "%.1f" or "%.2f"):format(value)
end

--- The values of the best setting, by their median, and its largest resident sizes.
local function best_of(row)
  local best, memory
  for k = 3, #sides do
    local values = row.values[k]
    if #values > 0 and (not best or median(values) < median(best)) then
      best, memory = values, row.memory[k]
    end
  end
  return best or {}, memory or {}
end

--- Whether a row is a training step, beside whose time its memory is shown.
local function is_step(row) return row[3] == "step_ms" and row.script ~= "startup" end

local head = { "", "accel", "PyTorch as installed", "ratio", "PyTorch at its best", "ratio",
  "memory: accel", "PyTorch at its best", "share" }
local json, steps_installed, steps_best, all_installed, all_best, shares = {}, {}, {}, {}, {}, {}

-- The largest resident size of a rank's process in a training step, and what it is of PyTorch's.
local function memory_cells(row)
  local ours = is_step(row) and row.values and median(row.memory[1])
  if not ours then return "", "", "" end
  local theirs = median(select(2, best_of(row)))
  if not theirs then return show(ours) .. " MB", "", "" end
  shares[#shares + 1] = ours / theirs
  return show(ours) .. " MB", show(theirs) .. " MB", ("%.2f"):format(ours / theirs)
end

local function print_cells(cells) print("| " .. table.concat(cells, " | ") .. " |") end

-- Shows a row from its medians: ours, PyTorch's as installed, its best; nil where it was not
-- measured.
local function show_row(row, medians)
  local ours, plain, best = unpack(medians, 1, 3)
  local cells = { row[1], ours and show(ours) .. " " .. row[2] or "" }
  if has_torch then
    for k = 3, 6 do cells[k] = "" end
    -- A side may have nothing like it, may have failed or run into the limit.
    local function compare(k, theirs, all, steps)
      if not theirs then return end
      cells[k] = show(theirs) .. " " .. row[2]
      if not ours then return end
      local ratio = row.scale and ours / theirs or theirs / ours -- of a scale more is better
      cells[k + 1] = ("%.2f"):format(ratio)
      all[#all + 1] = ratio
      if is_step(row) then steps[#steps + 1] = ratio end
    end
    compare(3, plain, all_installed, steps_installed)
    compare(5, best, all_best, steps_best)
  end
  cells[#cells + 1], cells[#cells + 2], cells[#cells + 3] = memory_cells(row)
  if not has_torch then cells[4], cells[5] = nil, nil end
  print_cells(cells)
  if row.values then
    json[#json + 1] = (
      '  {"name": "%s", "unit": "%s", "accel": [%s], "installed": [%s], "best": [%s]}'):format(row[1],
      row[2],
      table.concat(row.values[1], ", "), table.concat(row.values[2] or {}, ", "),
      table.concat(best_of(row), ", "))
  end
end

local by_name = {} -- the medians of the rows that were shown

--- Shows the rows of a run, and what compares one of them with a row before.
local function show_run(run)
  for _, row in ipairs(run.rows) do
    by_name[row[1]] = { median(row.values[1]), median(row.values[2] or {}), median(best_of(row)) }
    show_row(row, by_name[row[1]])
  end
  for _, row in ipairs(ROWS) do
    local one, two = by_name[row.scale and row.scale[1]], by_name[row.scale and row.scale[2]]
    if one and two and not row.shown then
      row.shown = true
      local medians = {}
      for k = 1, 3 do medians[k] = one[k] and two[k] and 2 * one[k] / two[k] end
      show_row(row, medians)
    end
  end
end

local columns = has_torch and head or { "", "accel", "memory" }
print_cells(columns)
print(("|---"):rep(#columns) .. "|")
for k, run in ipairs(runs) do
  local times = math.min(rounds, run.first.rounds or rounds)
  io.stderr:write(("%d of %d, %d rounds: %s\n"):format(k, #runs, times, run.first[1]))
  for _ = 1, times do measure(run) end
  show_run(run)
  io.stdout:flush()
end
print()
local function say_median(what, installed, best)
  if #best > 0 then
    print(("Median ratio of %s (%d rows, %d rounds): %.2f over PyTorch as installed, " ..
      "%.2f over its best setting."):format(what, #best, rounds,
      median(installed), median(best)))
  end
end
say_median("the table", all_installed, all_best)
say_median("the training steps", steps_installed, steps_best)
if #shares > 0 then
  print(("Median memory of a process in a training step: %.2f of PyTorch's."):format(median(shares)))
end
print()
print(("Medians of %d rounds, one thread for each rank where nothing else is said. %s, %d cores."):format(
  rounds,
  cpuinfo:match("model name%s*:%s*([^\n]+)") or "?", select(2, cpuinfo:gsub("\nprocessor%s*:", "\n")) + 1))
if about[1] then
  print(("accel: %s, kernels for x86-64-%s."):format(text(about[1], "backend"),
    text(about[1], "level"):gsub("^x86%-64%-", "")))
end
if about[2] then
  print(("PyTorch %s, oneDNN %s, %s kernels, Python %s; at its best: %swith the fused optimizer."):format(
    text(about[2], "torch"),
    text(about[2], "onednn"), text(about[2], "capability"), text(about[2], "python"), BEST))
end
-- Both sides of this one are ours: the same steps with the Accelerator and as a bare loop.
if COST:find(only) then
  local line, status = capture(("'%s' --num_cpu_threads_per_process 1 '%s/overhead.lua'"):format(host,
    here), limit)
  if status ~= 0 then error("failed: " .. line, 0) end
  print(("The Accelerator adds %.1f %% to the processor time of a bare loop at the MLP " ..
    "step of batch 64 on one rank."):format(
    number(line, "overhead_percent")))
end
if noisy then print("Other processes kept the machine busy during some measurements.") end

local out = assert(io.open(here .. "/results.json", "w"))
out:write("[\n", table.concat(json, ",\n"), "\n]\n")
out:close()
if failed then os.exit(1) end
