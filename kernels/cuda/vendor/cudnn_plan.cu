/* Plans of cuDNN: the choice among what its heuristics return.  See cudnn.h. */
#include "cudnn_functions.h"

#ifdef AX_CUDNN

enum { MOST_CONFIGS = 64 };

static bool get(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t attribute,
                cudnnBackendAttributeType_t type, int64_t most, int64_t *count, void *values)
{
  return ax_cudnn.p_cudnnBackendGetAttribute(d, attribute, type, most, count, values) == CUDNN_STATUS_SUCCESS;
}

/* The engine's number, and whether it may be used. */
static bool allowed(cudnnBackendDescriptor_t config, bool exact, int64_t *index, const char **why)
{
  /* newer versions have more notes */
  cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT + 16];
  const int64_t most = (int64_t)(sizeof notes / sizeof *notes);
  int64_t n = 0;
  ax_cudnn_holder engine;
  *why = "its engine cannot be read";
  if (engine.make(CUDNN_BACKEND_ENGINE_DESCRIPTOR) != CUDNN_STATUS_SUCCESS) return false;
  if (!get(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine.d))
    return false;
  if (!get(engine.d, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &n, index)) return false;
  if (!get(engine.d, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, most, &n, notes))
    return false;
  *why = NULL;
  for (int64_t k = 0; k < n && k < most; k++) switch (notes[k]) {
    case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC:
      if (ax_deterministic()) *why = "not deterministic";
      break;
    case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION: *why = "sums in a narrower type"; break;
    case CUDNN_NUMERICAL_NOTE_TENSOR_CORE:
    case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS:
      if (exact) *why = "rounds float32 inputs";
      break;
    default: break;
    }
  return !*why;
}

/* Builds the plan of one configuration; takes the configuration when that succeeds. */
static bool build_plan(const ax_cudnn_target &target, ax_cudnn_holder &config, int64_t most_workspace,
                       ax_cudnn_plan *out, std::string *why)
{
  ax_cudnn_holder plan;
  int64_t n = 0, workspace = 0;
  cudnnStatus_t s = plan.make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  if (s == CUDNN_STATUS_SUCCESS && target.handle)
    s = ax_cudnn.p_cudnnBackendSetAttribute(plan.d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
                                            &target.handle);
  if (s == CUDNN_STATUS_SUCCESS && target.description)
    s = ax_cudnn.p_cudnnBackendSetAttribute(plan.d, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP,
                                            CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &target.description);
  if (s == CUDNN_STATUS_SUCCESS)
    s = ax_cudnn.p_cudnnBackendSetAttribute(plan.d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                            CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config.d);
  if (s == CUDNN_STATUS_SUCCESS) s = ax_cudnn.p_cudnnBackendFinalize(plan.d);
  if (s != CUDNN_STATUS_SUCCESS) {
    *why = ax_cudnn_words(s);
    return false;
  }
  if (!get(plan.d, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n, &workspace) ||
      workspace < 0 || workspace > most_workspace) {
    *why = "needs " + std::to_string(workspace) + " bytes of workspace";
    return false;
  }
  out->workspace = workspace;
  out->plan = plan.release();
  out->config = config.release(); /* the plan refers to it */
  return true;
}

/* Tries what one mode of the heuristics returns, best first. */
static bool choose_by(cudnnBackendHeurMode_t mode, const ax_cudnn_target &target,
                      cudnnBackendDescriptor_t graph, bool exact, int64_t most_workspace, ax_cudnn_plan *out,
                      std::string *why)
{
  ax_cudnn_holder heuristics;
  int64_t n = 0;
  cudnnStatus_t s = heuristics.make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  if (s == CUDNN_STATUS_SUCCESS)
    s = ax_cudnn.p_cudnnBackendSetAttribute(heuristics.d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
                                            CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph);
  if (s == CUDNN_STATUS_SUCCESS)
    s = ax_cudnn.p_cudnnBackendSetAttribute(heuristics.d, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1,
                                            &mode);
  if (s == CUDNN_STATUS_SUCCESS && target.description)
    s = ax_cudnn.p_cudnnBackendSetAttribute(heuristics.d, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP,
                                            CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &target.description);
  if (s == CUDNN_STATUS_SUCCESS) s = ax_cudnn.p_cudnnBackendFinalize(heuristics.d);
  if (s == CUDNN_STATUS_SUCCESS)
    s = ax_cudnn.p_cudnnBackendGetAttribute(heuristics.d, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                            CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &n, NULL);
  if (s != CUDNN_STATUS_SUCCESS) {
    *why += std::string("; heuristics ") + std::to_string((int)mode) + ": " + ax_cudnn_words(s);
    return false;
  }
  if (n > MOST_CONFIGS) n = MOST_CONFIGS;
  std::vector<ax_cudnn_holder> configs;
  std::vector<cudnnBackendDescriptor_t> raw;
  configs.reserve((size_t)n);
  for (int64_t k = 0; k < n; k++) {
    ax_cudnn_holder config;
    if (config.make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR) != CUDNN_STATUS_SUCCESS) break;
    raw.push_back(config.d);
    configs.push_back(std::move(config));
  }
  if (raw.empty() || !get(heuristics.d, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                          (int64_t)raw.size(), &n, raw.data()))
    return false;
  for (int64_t k = 0; k < n && k < (int64_t)configs.size(); k++) {
    const char *not_allowed = NULL;
    std::string refusal;
    int64_t index = -1;
    if (allowed(configs[(size_t)k].d, exact, &index, &not_allowed) &&
        build_plan(target, configs[(size_t)k], most_workspace, out, &refusal)) {
      out->engine = index;
      return true;
    }
    *why += "; engine " + std::to_string(index) + ": " + (not_allowed ? not_allowed : refusal.c_str());
  }
  return false;
}

bool ax_cudnn_choose(ax_cudnn_graph &g, ax_cudnn_builder build, const ax_cudnn_key &key, bool exact,
                     int64_t most_workspace, ax_cudnn_plan *out, std::string *why)
{
  build(g, key);
  const cudnnBackendDescriptor_t graph = g.close();
  why->clear();
  if (!g.ok()) *why = "; " + g.message;
  return g.ok() && (choose_by(CUDNN_HEUR_MODE_A, g.target, graph, exact, most_workspace, out, why) ||
                    choose_by(CUDNN_HEUR_MODE_FALLBACK, g.target, graph, exact, most_workspace, out, why));
}

void ax_cudnn_plan::release(void)
{
  if (plan) ax_cudnn.p_cudnnBackendDestroyDescriptor(plan);
  if (config) ax_cudnn.p_cudnnBackendDestroyDescriptor(config);
  plan = config = NULL;
}

#endif
