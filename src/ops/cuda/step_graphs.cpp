#include "ops/cuda/step_graphs.h"

#include <algorithm>
#include <vector>

#include "ops/cuda/device_error.h"

namespace percheron::ops::cuda {

cudaGraphExec_t StepGraphs::find(std::uint64_t fingerprint) {
    const auto found = std::find_if(graphs_.begin(), graphs_.end(), [&](const Entry& entry) {
        return entry.fingerprint == fingerprint;
    });
    if (found == graphs_.end()) return nullptr;
    graphs_.splice(graphs_.begin(), graphs_, found);
    return graphs_.front().graph;
}

bool StepGraphs::seen(std::uint64_t fingerprint) {
    if (std::find(seen_.begin(), seen_.end(), fingerprint) != seen_.end()) return true;
    seen_.push_front(fingerprint);
    if (seen_.size() > most_seen) seen_.pop_back();
    return false;
}

Result<cudaGraphExec_t> StepGraphs::add(std::uint64_t fingerprint, cudaGraph_t graph) {
    Entry entry{fingerprint, nullptr};
    std::size_t nodes = 0;
    PERCHERON_TRY(check(cudaGraphGetNodes(graph, nullptr, &nodes), "counting a step's kernels"));
    std::vector<cudaGraphNode_t> all(nodes);
    PERCHERON_TRY(check(cudaGraphGetNodes(graph, all.data(), &nodes), "counting a step's kernels"));
    latest_kernels_ =
        static_cast<std::size_t>(std::count_if(all.begin(), all.end(), [](cudaGraphNode_t node) {
            cudaGraphNodeType type;
            return cudaGraphNodeGetType(node, &type) == cudaSuccess &&
                   type == cudaGraphNodeTypeKernel;
        }));
    const Status made = check(cudaGraphInstantiate(&entry.graph, graph, 0), "recording a step");
    cudaGraphDestroy(graph);
    if (!made.ok()) return made.error();
    graphs_.push_front(entry);
    if (graphs_.size() > most_graphs) {
        cudaGraphExecDestroy(graphs_.back().graph);
        graphs_.pop_back();
    }
    return entry.graph;
}

void StepGraphs::clear() {
    for (const Entry& entry : graphs_)
        cudaGraphExecDestroy(entry.graph);
    graphs_.clear();
}

}  // namespace percheron::ops::cuda
