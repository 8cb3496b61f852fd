/* The emulated device's graphs: capturing streams, and launching what was captured.  See emulate.h.
 *
 * Captured work is kept in the order in which it was queued, which is one of the orders that the
 * events allow.  Calls that CUDA forbids during a capture are refused as its documentation says,
 * and invalidate the capture: every later call on it, and its end, then fail. */
#include "emulate.h"

#include <map>
#include <memory>
#include <vector>

/* work, or what makes work that waits for other processes */
struct piece {
  std::function<void()> work;
  std::function<std::function<bool()>()> make;
};
struct ax_emulated_graph {
  std::vector<piece> work;
};
struct ax_emulated_exec {
  std::shared_ptr<const std::vector<piece>> work;
};

struct capture {
  ax_emulated_graph *graph;
  cudaStream_t origin;
  cudaStreamCaptureMode mode;
  bool spoiled;
  /* the captured work of each stream, and how much of it the origin has waited for */
  std::map<cudaStream_t, std::pair<size_t, size_t>> streams;
};
struct mark {
  capture *of;
  cudaStream_t stream;
  size_t at;
};

static std::map<cudaStream_t, capture *> capturing;
static std::map<cudaEvent_t, mark> marks; /* events recorded in a stream during its capture */

static capture *capture_of(cudaStream_t s)
{
  const auto found = capturing.find(s);
  return found == capturing.end() ? NULL : found->second;
}

static cudaError_t spoil(capture *c, cudaError_t e)
{
  c->spoiled = true;
  return e;
}

/* ---- called by the runtime */

bool ax_emulate_capturing(cudaStream_t s) { return capture_of(s) != NULL; }

static void take(cudaStream_t s, piece p)
{
  capture *c = capture_of(s);
  if (c->spoiled) return;
  c->streams[s].first++;
  c->graph->work.push_back(std::move(p));
}

void ax_emulate_captured(cudaStream_t s, std::function<void()> work)
{
  take(s, piece{ std::move(work), nullptr });
}

void ax_emulate_captured_poll(cudaStream_t s, std::function<std::function<bool()>()> make)
{
  take(s, piece{ nullptr, std::move(make) });
}

cudaError_t ax_emulate_refused(cudaStream_t s)
{
  capture *c = capture_of(s);
  return !c           ? cudaSuccess
         : c->spoiled ? cudaErrorStreamCaptureInvalidated
                      : spoil(c, cudaErrorStreamCaptureUnsupported);
}

cudaError_t ax_emulate_spoiled(cudaStream_t s)
{
  capture *c = capture_of(s);
  return c && c->spoiled ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
}

cudaError_t ax_emulate_unsafe(bool always)
{
  for (auto &each : capturing)
    if (always || each.second->mode != cudaStreamCaptureModeRelaxed)
      return spoil(each.second, cudaErrorStreamCaptureUnsupported);
  return cudaSuccess;
}

bool ax_emulate_event_recorded(cudaEvent_t e, cudaStream_t s)
{
  capture *c = capture_of(s);
  marks.erase(e);
  if (c) marks[e] = mark{ c, s, c->streams[s].first };
  return c != NULL;
}

bool ax_emulate_event_waited(cudaStream_t s, cudaEvent_t e, bool never_recorded, cudaError_t *result)
{
  capture *c = capture_of(s);
  const auto found = marks.find(e);

  *result = cudaSuccess;
  if (found == marks.end()) {
    if (c && !never_recorded) *result = spoil(c, cudaErrorStreamCaptureIsolation);
    return c != NULL;
  }
  const mark m = found->second;
  /* from a capture that has ended */
  if (!m.of) *result = c ? spoil(c, cudaErrorStreamCaptureIsolation) : (cudaError_t)cudaErrorCapturedEvent;
  else if (c && c != m.of) *result = spoil(c, cudaErrorStreamCaptureMerge);
  else if (!c) { /* the stream joins the capture */ capturing[s] = m.of;
    m.of->streams[s];
  } else if (s == c->origin && c->streams[m.stream].second < m.at) c->streams[m.stream].second = m.at;
  return true;
}

cudaError_t ax_emulate_event_queried(cudaEvent_t e)
{
  const auto found = marks.find(e);
  if (found == marks.end()) return cudaSuccess;
  if (found->second.of) found->second.of->spoiled = true;
  return cudaErrorCapturedEvent;
}

void ax_emulate_event_gone(cudaEvent_t e) { marks.erase(e); }

/* ---- the runtime's functions */

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode)
{
  if (!s) return cudaErrorStreamCaptureUnsupported; /* the legacy stream */
  if (capture_of(s)) return cudaErrorInvalidValue;
  capture *c = new capture{ new ax_emulated_graph(), s, mode, false, {} };
  c->streams[s];
  capturing[s] = c;
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus *status)
{
  const capture *c = capture_of(s);
  *status = !c           ? cudaStreamCaptureStatusNone
            : c->spoiled ? cudaStreamCaptureStatusInvalidated
                         : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph)
{
  capture *c = capture_of(s);
  cudaError_t e = cudaSuccess;

  *graph = NULL;
  if (!c) return cudaErrorInvalidValue;
  if (c->origin != s) return spoil(c, cudaErrorStreamCaptureUnmatched);
  for (auto &each : c->streams) {
    if (each.first != s && each.second.first != each.second.second) e = cudaErrorStreamCaptureUnjoined;
    capturing.erase(each.first);
  }
  if (c->spoiled) e = cudaErrorStreamCaptureInvalidated;
  for (auto &each : marks)
    if (each.second.of == c) each.second.of = NULL;
  if (e == cudaSuccess) *graph = c->graph;
  else delete c->graph;
  delete c;
  return e;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
  *exec = new ax_emulated_exec{ std::make_shared<const std::vector<piece>>(graph->work) };
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n)
{
  if (!nodes) *n = graph->work.size();
  return nodes ? (cudaError_t)cudaErrorInvalidValue : (cudaError_t)cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t s) { return ax_emulate_refused(s); }

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
  /* CUDA would add it as a child graph; no code here launches one during a capture */
  const cudaError_t refused = ax_emulate_refused(s);
  if (refused) return refused;
  const auto work = exec->work; /* the graph may be destroyed before its launch has run */
  cudaError_t e = cudaSuccess;
  for (size_t k = 0; k < work->size() && !e;) {
    const size_t from = k;
    while (k < work->size() && (*work)[k].work) k++;
    if (k > from)
      e = ax_the_emulator.work(s, [work, from, k]() {
        for (size_t i = from; i < k; i++) (*work)[i].work();
      });
    if (!e && k < work->size()) e = ax_the_emulator.poll(s, (*work)[k++].make);
  }
  return e;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
  delete exec;
  return cudaSuccess;
}
