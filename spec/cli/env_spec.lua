--- `accel-run env`: what there is, and why a GPU is not used.
local core = require "accelerate.core"
local host = require "spec.support.host"
local has = require("spec.support.messages").has

local build = host.path:match("^(.*)/")

local function env(settings)
  local all = { ACCEL_CUDA_LIBRARIES = "/nowhere" }
  for key, value in pairs(settings or {}) do all[key] = value end
  local status, out, err = host.run({ "env" }, { env = all })
  assert.are.equal(0, status, err)
  return out
end

local function exists(path)
  local f = io.open(path)
  if f then f:close() end
  return f ~= nil
end

describe("accel-run env", function()
  it("tells versions, machine, memory and configuration", function()
    local out = env { ACCEL_CUDA_PLUGIN = "/nowhere/libax_cuda.so" }
    for _, name in ipairs { "accel version: 0", "Platform: Linux", "LuaJIT: LuaJIT 2", "CPU: ",
      "CPU backend: ", "Threads: ",
      "System memory: ", "Memory for tensors of a process: ",
      "Default config: " } do has(out, "- " .. name) end
    has(out, "this build has no CUDA backend: there is no /nowhere/libax_cuda.so (it " ..
      "is built where nvcc is found)")
  end)

  it("is in the help, and takes no arguments", function()
    local _, help = host.run { "--help" }
    has(help, "accel-run env")
    local status, _, err = host.run { "env", "more" }
    assert.are.equal(2, status)
    has(err, "accel-run env: takes no arguments, got 'more'")
  end)

  it("says when the backend was built for another host, or is none", function()
    local fake = build .. "/libax_fake_device.so"
    if not exists(fake) then return pending("needs libax_fake_device.so") end
    has(env { ACCEL_CUDA_PLUGIN = fake, ACCEL_FAKE_INTERFACE = "77" },
      "libax_fake_device.so: built for interface 77, this host has ")
    local cpu = ("%s/libax_cpu_%s.so"):format(build, core.backend_info().level:match("v%d$") or "native")
    has(env { ACCEL_CUDA_PLUGIN = cpu }, "is the backend 'cpu', which is for no device")
    has(env { ACCEL_CUDA_PLUGIN = fake }, "- CUDA: 2 devices")
  end)

  describe("with the emulated backend", function()
    local emulated = build .. "/libax_cuda_emulated.so"
    local function with(settings)
      settings.ACCEL_CUDA_PLUGIN = emulated
      return env(settings)
    end
    if not exists(emulated) then
      it("needs it", function() pending("needs make test-emulated") end)
      return
    end

    it("tells devices, and where it looked for libraries", function()
      local out = with {}
      has(out, "- cuda:1: emulated, sm_90, 1.07 GB, 4 multiprocessors")
      has(out, "- CUDA runtime, of this build: 13.0, machine code for sm_90")
      for _, name in ipairs { "cuBLASLt", "cuDNN", "NCCL", "cuFFT", "cuSOLVER" } do
        has(out, ("- %s: not found: %s needs "):format(name, name))
      end
      has(out, "/nowhere")
    end)

    it("tells libraries that are there, with version and file", function()
      if not exists(build .. "/fakes/libcudnn.so.9") then
        return pending("needs the stand-ins of make fakes")
      end
      local out = with { ACCEL_CUDA_LIBRARIES = build .. "/fakes" }
      has(out, "- cuDNN: 9.")
      has(out, "- cuFFT: 12.")
      has(out, "- cuSOLVER: 12.")
    end)

    it("takes libraries that are made for its CUDA, wherever they are in the order", function()
      if not exists(build .. "/fakes/libcudnn.so.9") then
        return pending("needs the stand-ins of make fakes")
      end
      host.in_folder(function(folder) -- a stand-in whose path says cu12 is one for CUDA 12
        os.execute(("cd '%s' && mkdir cu12 cu13 && cp -L '%s/fakes/libcudnn.so.9' cu12 && cp cu12/* cu13 " ..
          "&& cp -L '%s/fakes/libcublasLt.so.13' cu13 && cp cu13/libcublasLt.so.13 cu12/libcublasLt.so.12")
          :format(folder, build, build))
        local function opened(...)
          local list = {}
          for k, name in ipairs { ... } do list[k] = folder .. "/" .. name end
          local out = with { ACCEL_CUDA_LIBRARIES = table.concat(list, ":") }
          return out:match "cuBLASLt: %S+, (%S+)" , out:match "cuDNN: %S+, (%S+)"
        end
        for _, order in ipairs { { "cu12", "cu13" }, { "cu13", "cu12" } } do
          assert.are.same({ folder .. "/cu13/libcublasLt.so.13", folder .. "/cu13/libcudnn.so.9" },
            { opened(unpack(order)) })
        end
        assert.are.same({ folder .. "/cu12/libcublasLt.so.12", folder .. "/cu12/libcudnn.so.9" },
          { opened "cu12" })
      end)
    end)

    it("tells that there is no driver, that it is too old, that no device is visible", function()
      has(with { ACCEL_EMULATED_DRIVER = "0" }, "no NVIDIA driver was found (libcuda.so.1)")
      local old = with { ACCEL_EMULATED_DRIVER = "12040" }
      has(old, "the NVIDIA driver supports CUDA up to 12.4, this build needs 13.0: update the driver, " ..
        "or build with CUDA 12's toolkit")
      has(old, "- CUDA of the driver: 12.4")
      has(with { CUDA_VISIBLE_DEVICES = "" }, 'CUDA_VISIBLE_DEVICES="" leaves no device visible')
    end)
  end)
end)
