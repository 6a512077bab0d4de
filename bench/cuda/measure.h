// Timing of kernels on the device: launches are captured into a graph and replayed, medians are
// taken, and every launch works on another copy of its data, so that the second-level cache holds
// nothing of it.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include <cuda_runtime.h>

#include "ops_cuda/support.h"

namespace percheron::bench {

using check::require;

// Microseconds of one call of `launch`, the median over replays of a graph of `calls` calls;
// `launch` gets the stream and the number of the call.
inline double microseconds(int calls, const std::function<void(cudaStream_t, int)>& launch,
                           int replays = 9) {
    cudaStream_t stream;
    require(cudaStreamCreate(&stream), "stream");
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < calls; ++i)
        launch(stream, i);
    require(cudaStreamEndCapture(stream, &graph), "end of capture");
    require(cudaGraphInstantiate(&executable, graph, 0), "graph");
    cudaEvent_t start, stop;
    require(cudaEventCreate(&start), "event");
    require(cudaEventCreate(&stop), "event");
    std::vector<float> times;
    for (int i = 0; i < replays + 2; ++i) {
        require(cudaEventRecord(start, stream), "record");
        require(cudaGraphLaunch(executable, stream), "replay");
        require(cudaEventRecord(stop, stream), "record");
        require(cudaEventSynchronize(stop), "replay");
        float milliseconds = 0;
        require(cudaEventElapsedTime(&milliseconds, start, stop), "time");
        if (i >= 2) times.push_back(milliseconds);  // the first ones warm up
    }
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    cudaEventDestroy(start);
    cudaEventDestroy(stop);
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
    return 1000.0 * times[times.size() / 2] / calls;
}

// Device memory with random finite contents, whatever format reads it.
class RandomMemory {
  public:
    explicit RandomMemory(std::size_t bytes);
    std::uint8_t* data() const { return memory_.data(); }

  private:
    check::OnDevice<std::uint8_t> memory_;
};

// The rate at which a kernel that only reads can read, GB/s: the ceiling of the decode kernels.
double read_ceiling();
double copy_rate();

}  // namespace percheron::bench
