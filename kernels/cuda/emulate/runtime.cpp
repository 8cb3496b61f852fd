/* The emulated runtime: devices, errors, counts of calls, modes, and what the stand-ins of NVIDIA's
 * libraries have of it.  See emulate.h. */
#include "runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

thread_local int ax_emulate_device;
cudaError_t ax_emulate_lasting;
std::string ax_emulate_trouble;
std::recursive_mutex ax_emulate_lock;

/* ---- counting, and the rule about forks */

std::map<std::string, long> &ax_emulate_counts(void)
{
  static std::map<std::string, long> all;
  return all;
}
bool ax_emulate_forked(void)
{
  static const pid_t owner = getpid();
  return getpid() != owner;
}

extern "C" __attribute__((visibility("default"))) long ax_emulated_calls(const char *name)
{
  const auto found = ax_emulate_counts().find(name);
  return found == ax_emulate_counts().end() ? 0 : found->second;
}

void ax_emulate_context(void)
{
  static bool made[AX_EMULATED_DEVICES];
  if (made[ax_emulate_device]) return;
  made[ax_emulate_device] = true;
  ax_emulate_counts()["context on cuda:" + std::to_string(ax_emulate_device)]++;
}

/* ---- modes */

static unsigned modes[AX_EMULATED_MODES];

unsigned ax_emulate_mode(int mode)
{
  static bool read = false;
  static const char *const names[] = { "ACCEL_EMULATED_ORDER", "ACCEL_EMULATED_GUARD", "ACCEL_EMULATED_MATH",
                                       "ACCEL_EMULATED_OLD" };
  for (; !read; read = true)
    for (int k = 0; k < AX_EMULATED_MODES; k++)
      if (const char *text = getenv(names[k])) modes[k] = (unsigned)atoi(text);
  return modes[mode];
}

/* For specs. */
extern "C" __attribute__((visibility("default"))) void ax_emulated_mode(int mode, unsigned value)
{
  ax_emulate_holding held(ax_emulate_lock);
  ax_emulate_run_all();
  ax_emulate_mode(mode);
  modes[mode] = value;
}

/* ---- errors */

void ax_emulate_failed(const char *wrong)
{
  if (ax_emulate_lasting) return;
  ax_emulate_lasting = cudaErrorLaunchFailure;
  ax_emulate_trouble = wrong;
}

/* ---- for stand-ins of libraries */

static int library_device(void) { return ax_emulate_device; }

const ax_emulator ax_the_emulator = { ax_emulate_library_work, ax_emulate_owns, library_device,
                                      ax_emulate_library_poll, ax_emulate_moved };

/* ---- the runtime's functions: devices and errors */

static int driver_version(void)
{
  const char *text = getenv("ACCEL_EMULATED_DRIVER");
  return text && *text ? atoi(text) : 13000;
}

/* $ACCEL_EMULATED_DEVICES of them, else 2; of these the ones that $CUDA_VISIBLE_DEVICES lists, up
 * to the first that is not there. */
static int device_count(void)
{
  const char *text = getenv("ACCEL_EMULATED_DEVICES"), *visible = getenv("CUDA_VISIBLE_DEVICES");
  int all = text ? atoi(text) : 2, n = 0;

  if (all > AX_EMULATED_DEVICES) all = AX_EMULATED_DEVICES;
  if (!visible) return all;
  for (const char *p = visible; *p >= '0' && *p <= '9' && atoi(p) < all && n < all;
       p += strspn(p, "0123456789"), p += *p == ',')
    n++;
  return n;
}

cudaError_t cudaGetDeviceCount(int *n)
{
  CALLED();
  *n = 0;
  if (driver_version() < 13000) return cudaErrorInsufficientDriver;
  *n = device_count();
  return *n > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaSetDevice(int d)
{
  CALLED();
  if (d < 0 || d >= device_count()) return cudaErrorInvalidDevice;
  ax_emulate_device = d;
  ax_emulate_context();
  return cudaSuccess;
}

/* ---- peer access */

static thread_local cudaError_t refused_access; /* until cudaGetLastError */
static bool reached[AX_EMULATED_DEVICES][AX_EMULATED_DEVICES];

bool ax_emulate_reaches(int device, int peer) { return reached[device][peer]; }

static bool can_reach(int device, int peer)
{
  const char *text = getenv("ACCEL_EMULATED_PEERS");
  return device != peer && (!text || atoi(text));
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
  CALLED();
  const int n = device_count();
  if (device < 0 || device >= n || peer < 0 || peer >= n) return refused_access = cudaErrorInvalidDevice;
  *can = can_reach(device, peer);
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
  CALLED();
  if (flags) return refused_access = cudaErrorInvalidValue;
  if (peer < 0 || peer >= device_count() || peer == ax_emulate_device)
    return refused_access = cudaErrorInvalidDevice;
  if (!can_reach(ax_emulate_device, peer)) return refused_access = cudaErrorPeerAccessUnsupported;
  if (reached[ax_emulate_device][peer]) return refused_access = cudaErrorPeerAccessAlreadyEnabled;
  ax_emulate_context();
  reached[ax_emulate_device][peer] = true;
  return cudaSuccess;
}

/* For specs: peer access, as another library of the process may have turned it on. */
extern "C" __attribute__((visibility("default"))) void ax_emulated_reach(int device, int peer)
{
  ax_emulate_holding held(ax_emulate_lock);
  reached[device][peer] = true;
}

cudaError_t cudaDeviceSynchronize(void)
{
  CALLED();
  if (const cudaError_t refused = ax_emulate_unsafe(true)) return refused;
  ax_emulate_run_all();
  return ax_emulate_lasting;
}

cudaError_t cudaGetLastError(void)
{
  const cudaError_t refused = refused_access;

  if (ax_emulate_forked()) return cudaErrorInitializationError;
  refused_access = cudaSuccess;
  return ax_emulate_lasting ? ax_emulate_lasting : refused;
}

const char *cudaGetErrorString(cudaError_t e)
{
  switch (e) {
  case cudaSuccess: return "no error";
  case cudaErrorInvalidValue: return "invalid argument";
  case cudaErrorMemoryAllocation: return "out of memory";
  case cudaErrorInitializationError: return "initialization error";
  case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
  case cudaErrorNoDevice: return "no CUDA-capable device is detected";
  case cudaErrorNotSupported: return "operation not supported";
  case cudaErrorPeerAccessUnsupported: return "peer access is not supported between these two devices";
  case cudaErrorPeerAccessAlreadyEnabled: return "peer access is already enabled";
  case cudaErrorInvalidDevice: return "invalid device ordinal";
  case cudaErrorNotReady: return "device not ready";
  case cudaErrorLaunchFailure: return ax_emulate_trouble.c_str();
  case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
  case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
  case cudaErrorStreamCaptureUnjoined: return "capturing stream has unjoined work";
  case cudaErrorStreamCaptureIsolation: return "dependency created on uncaptured work in another stream";
  case cudaErrorCapturedEvent:
    return "operation not permitted on an event last recorded in a capturing stream";
  default: return "unknown error";
  }
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int)
{
  CALLED();
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "emulated");
  p->major = 9;
  p->multiProcessorCount = 4;
  p->totalGlobalMem = ax_emulate_total();
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int d)
{
  CALLED();
  const char *p = getenv("CUDA_VISIBLE_DEVICES");
  int k = d;

  if (d < 0 || d >= device_count()) return cudaErrorInvalidDevice;
  while (p && k-- > 0) p = strchr(p, ',') + 1;
  snprintf(id, (size_t)size, "0000:%02x:00.0", p ? atoi(p) : d);
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *v)
{
  *v = 13000;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *v)
{
  *v = driver_version();
  return cudaSuccess;
}
