"""Run by the Python that has the `vastai` package: its worker class in front of ours, set up as for ComfyUI.

Arguments: the front's port, its log file, the benchmark's payload as JSON. The rest comes from Vast's variables.
"""

from __future__ import annotations

import json
import sys

from vastai import BenchmarkConfig, HandlerConfig, LogActionConfig, Worker, WorkerConfig


def config_for(port: int, log_file: str, payload: dict[str, object]) -> WorkerConfig:
    return WorkerConfig(
        model_server_url="http://127.0.0.1",
        model_server_port=port,
        model_log_file=log_file,
        model_healthcheck_url=f"http://127.0.0.1:{port}/health",
        handlers=[
            HandlerConfig(
                route="/generate/sync",
                allow_parallel_requests=False,
                max_queue_time=10.0,
                workload_calculator=lambda _payload: 100.0,
                benchmark_config=BenchmarkConfig(dataset=[payload], runs=2),
            )
        ],
        log_action_config=LogActionConfig(
            on_load=["BACKENDS_READY"],
            on_error=["BACKENDS_READY_TIMEOUT", "BACKEND_UNRECOVERABLE", "Application startup failed"],
        ),
    )


if __name__ == "__main__":
    Worker(config_for(int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))).run()
