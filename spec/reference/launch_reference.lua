-- Written by gen_launch_reference.py from accelerate 1.15.0: a configuration or false, options,
-- ranks, and what their environment has.
return {
  { name = "a single process", ranks = 1,
    config = "compute_environment: LOCAL_MACHINE\n" ..
      "debug: false\n" ..
      "downcast_bf16: 'no'\n" ..
      "machine_rank: 0\n" ..
      "main_training_function: main\n" ..
      "num_machines: 1\n" ..
      "rdzv_backend: static\n" ..
      "same_network: true\n" ..
      "tpu_env: []\n" ..
      "tpu_use_cluster: false\n" ..
      "tpu_use_sudo: false\n" ..
      "distributed_type: 'NO'\n" ..
      "mixed_precision: 'no'\n" ..
      "num_processes: 1\n" ..
      "use_cpu: false\n",
    options = {},
    env = { ACCELERATE_DYNAMO_BACKEND = "NO",
      ACCELERATE_MIXED_PRECISION = "no",
      ACCELERATE_USE_CPU = "False" } },
  { name = "a single process in fp16", ranks = 1,
    config = "compute_environment: LOCAL_MACHINE\n" ..
      "debug: false\n" ..
      "downcast_bf16: 'no'\n" ..
      "machine_rank: 0\n" ..
      "main_training_function: main\n" ..
      "num_machines: 1\n" ..
      "rdzv_backend: static\n" ..
      "same_network: true\n" ..
      "tpu_env: []\n" ..
      "tpu_use_cluster: false\n" ..
      "tpu_use_sudo: false\n" ..
      "distributed_type: 'NO'\n" ..
      "mixed_precision: fp16\n" ..
      "num_processes: 1\n" ..
      "use_cpu: false\n",
    options = {},
    env = { ACCELERATE_DYNAMO_BACKEND = "NO",
      ACCELERATE_MIXED_PRECISION = "fp16",
      ACCELERATE_USE_CPU = "False" } },
  { name = "several GPUs", ranks = 4,
    config = "compute_environment: LOCAL_MACHINE\n" ..
      "debug: false\n" ..
      "downcast_bf16: 'no'\n" ..
      "machine_rank: 0\n" ..
      "main_training_function: main\n" ..
      "num_machines: 1\n" ..
      "rdzv_backend: static\n" ..
      "same_network: true\n" ..
      "tpu_env: []\n" ..
      "tpu_use_cluster: false\n" ..
      "tpu_use_sudo: false\n" ..
      "distributed_type: MULTI_GPU\n" ..
      "gpu_ids: all\n" ..
      "mixed_precision: fp16\n" ..
      "num_processes: 4\n" ..
      "use_cpu: no\n",
    options = {},
    env = { ACCELERATE_DYNAMO_BACKEND = "NO",
      ACCELERATE_MIXED_PRECISION = "fp16" } },
  { name = "chosen GPUs", ranks = 2,
    config = "compute_environment: LOCAL_MACHINE\n" ..
      "debug: false\n" ..
      "downcast_bf16: 'no'\n" ..
      "machine_rank: 0\n" ..
      "main_training_function: main\n" ..
      "num_machines: 1\n" ..
      "rdzv_backend: static\n" ..
      "same_network: true\n" ..
      "tpu_env: []\n" ..
      "tpu_use_cluster: false\n" ..
      "tpu_use_sudo: false\n" ..
      "distributed_type: MULTI_GPU\n" ..
      "gpu_ids: 0,2\n" ..
      "mixed_precision: bf16\n" ..
      "num_processes: 2\n" ..
      "use_cpu: no\n",
    options = {},
    env = { ACCELERATE_DYNAMO_BACKEND = "NO",
      ACCELERATE_MIXED_PRECISION = "bf16",
      CUDA_VISIBLE_DEVICES = "0,2" } },
  { name = "fewer ranks than the file", ranks = 2,
    config = "compute_environment: LOCAL_MACHINE\n" ..
      "debug: false\n" ..
      "downcast_bf16: 'no'\n" ..
      "machine_rank: 0\n" ..
      "main_training_function: main\n" ..
      "num_machines: 1\n" ..
      "rdzv_backend: static\n" ..
      "same_network: true\n" ..
      "tpu_env: []\n" ..
      "tpu_use_cluster: false\n" ..
      "tpu_use_sudo: false\n" ..
      "distributed_type: MULTI_GPU\n" ..
      "mixed_precision: fp16\n" ..
      "num_processes: 4\n" ..
      "use_cpu: false\n",
    options = {"--num_processes", "2", "--mixed_precision", "bf16"},
    env = { ACCELERATE_DYNAMO_BACKEND = "NO",
      ACCELERATE_MIXED_PRECISION = "bf16" } },
  { name = "debug mode", ranks = 2,
    config = "compute_environment: LOCAL_MACHINE\n" ..
      "debug: true\n" ..
      "downcast_bf16: 'no'\n" ..
      "machine_rank: 0\n" ..
      "main_training_function: main\n" ..
      "num_machines: 1\n" ..
      "rdzv_backend: static\n" ..
      "same_network: true\n" ..
      "tpu_env: []\n" ..
      "tpu_use_cluster: false\n" ..
      "tpu_use_sudo: false\n" ..
      "distributed_type: MULTI_GPU\n" ..
      "mixed_precision: 'no'\n" ..
      "num_processes: 2\n",
    options = {},
    env = { ACCELERATE_DEBUG_MODE = "true",
      ACCELERATE_DYNAMO_BACKEND = "NO",
      ACCELERATE_MIXED_PRECISION = "no" } },
  { name = "a compiler of graphs", ranks = 2,
    config = "compute_environment: LOCAL_MACHINE\n" ..
      "debug: false\n" ..
      "downcast_bf16: 'no'\n" ..
      "machine_rank: 0\n" ..
      "main_training_function: main\n" ..
      "num_machines: 1\n" ..
      "rdzv_backend: static\n" ..
      "same_network: true\n" ..
      "tpu_env: []\n" ..
      "tpu_use_cluster: false\n" ..
      "tpu_use_sudo: false\n" ..
      "distributed_type: MULTI_GPU\n" ..
      "mixed_precision: 'no'\n" ..
      "num_processes: 2\n" ..
      "dynamo_config:\n" ..
      "  dynamo_backend: CUDAGRAPHS\n",
    options = {},
    env = { ACCELERATE_DYNAMO_BACKEND = "CUDAGRAPHS",
      ACCELERATE_MIXED_PRECISION = "no" } },
  { name = "processors near the GPU", ranks = 2,
    config = "compute_environment: LOCAL_MACHINE\n" ..
      "debug: false\n" ..
      "downcast_bf16: 'no'\n" ..
      "machine_rank: 0\n" ..
      "main_training_function: main\n" ..
      "num_machines: 1\n" ..
      "rdzv_backend: static\n" ..
      "same_network: true\n" ..
      "tpu_env: []\n" ..
      "tpu_use_cluster: false\n" ..
      "tpu_use_sudo: false\n" ..
      "distributed_type: MULTI_GPU\n" ..
      "mixed_precision: 'no'\n" ..
      "num_processes: 2\n",
    options = {"--enable_cpu_affinity"},
    env = { ACCELERATE_CPU_AFFINITY = "1",
      ACCELERATE_DYNAMO_BACKEND = "NO",
      ACCELERATE_MIXED_PRECISION = "no" } },
  { name = "an old file", ranks = 2,
    config = "compute_environment: LOCAL_MACHINE\n" ..
      "distributed_type: MULTI_GPU\n" ..
      "fp16: true\n" ..
      "num_processes: 2\n" ..
      "dynamo_backend: 'NO'\n" ..
      "main_process_ip: null\n" ..
      "main_process_port: null\n" ..
      "machine_rank: 0\n" ..
      "num_machines: 1\n",
    options = {},
    env = { ACCELERATE_DYNAMO_BACKEND = "NO",
      ACCELERATE_MIXED_PRECISION = "fp16" } },
  { name = "options alone", ranks = 2,
    config = false,
    options = {"--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "fp16",
      "--dynamo_backend", "no"},
    env = { ACCELERATE_DYNAMO_BACKEND = "NO",
      ACCELERATE_MIXED_PRECISION = "fp16" } },
  { name = "the CPU", ranks = 1,
    config = false,
    options = {"--cpu", "--num_processes", "1", "--num_machines", "1", "--mixed_precision", "no"},
    env = { ACCELERATE_DYNAMO_BACKEND = "NO",
      ACCELERATE_MIXED_PRECISION = "no",
      ACCELERATE_USE_CPU = "True" } },
  { name = "threads", ranks = 1,
    config = false,
    options = {"--num_cpu_threads_per_process", "3", "--num_processes", "1", "--num_machines", "1"},
    env = { ACCELERATE_DYNAMO_BACKEND = "NO",
      ACCELERATE_MIXED_PRECISION = "no",
      ACCELERATE_USE_CPU = "False",
      OMP_NUM_THREADS = "3" } },
}
