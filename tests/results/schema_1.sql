PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE schema_version (
	version INTEGER NOT NULL, 
	written_by VARCHAR(64) NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO schema_version VALUES(1,'0.1.0');
CREATE TABLE runs (
	id VARCHAR(32) NOT NULL, 
	started VARCHAR(40) NOT NULL, 
	command TEXT NOT NULL, 
	settings TEXT NOT NULL, 
	kernelwright VARCHAR(64) NOT NULL, 
	target TEXT NOT NULL, 
	fingerprint TEXT NOT NULL, 
	environment TEXT, 
	PRIMARY KEY (id)
);
INSERT INTO runs VALUES('1b3ccbfc3d0b48b28036ed6bbb3fa3d7','2026-11-28T16:59:21.397753+00:00','kernelwright run --suite builtin --rounds 3','{"coder": "builtin", "rounds": 3, "max_usd": null}','0.1.0','{"device": "cpu", "languages": ["cpp"], "ceilings": {"copy_bytes_s": 21000000000.0, "cached_copy_bytes_s": 84000000000.0, "fp32_flops_s": 330000000000.0}, "fingerprint": {"chip": "Testium 9000", "threads": 2, "memory_bytes": 17179869184, "last_level_cache_bytes": 33554432, "system": "Linux 6.1", "python": "3.11.7", "torch": "2.9.0", "compiler": "g++ 12.2.0"}}','{"chip": "Testium 9000", "threads": 2, "memory_bytes": 17179869184, "last_level_cache_bytes": 33554432, "system": "Linux 6.1", "python": "3.11.7", "torch": "2.9.0", "compiler": "g++ 12.2.0"}','{"sandbox": [{"name": "namespaces", "on": true, "why": "hides the network and other processes"}, {"name": "landlock", "on": false, "why": "this kernel lacks it"}], "caches": "cold", "arrivals_per_s": null}');
CREATE TABLE tasks (
	"key" INTEGER NOT NULL, 
	run VARCHAR(32) NOT NULL, 
	task TEXT NOT NULL, 
	record TEXT NOT NULL, 
	level INTEGER NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	stop_reason TEXT, 
	measures_nothing BOOLEAN NOT NULL, 
	measures_nothing_why TEXT NOT NULL, 
	audit TEXT NOT NULL, 
	seconds DOUBLE, 
	PRIMARY KEY ("key"), 
	UNIQUE (run, task), 
	FOREIGN KEY(run) REFERENCES runs (id)
);
INSERT INTO tasks VALUES(1,'1b3ccbfc3d0b48b28036ed6bbb3fa3d7','builtin:level1/softmax','{"id": "builtin:level1/softmax", "level": 1, "source": "# softmax\nclass Model: ...\n", "overrides": {}, "precision": "fp32"}',1,'pending',NULL,0,'','',NULL);
CREATE TABLE llm_calls (
	id INTEGER NOT NULL, 
	run VARCHAR(32) NOT NULL, 
	task TEXT, 
	role VARCHAR(64) NOT NULL, 
	model TEXT NOT NULL, 
	request_sha256 VARCHAR(64) NOT NULL, 
	request TEXT NOT NULL, 
	response TEXT NOT NULL, 
	prompt_tokens INTEGER NOT NULL, 
	completion_tokens INTEGER NOT NULL, 
	usd DOUBLE, 
	seconds DOUBLE NOT NULL, 
	PRIMARY KEY (id), 
	FOREIGN KEY(run) REFERENCES runs (id)
);
INSERT INTO llm_calls VALUES(1,'1b3ccbfc3d0b48b28036ed6bbb3fa3d7','builtin:level1/softmax','coder','test-model','0000000000000000000000000000000000000000000000000000000000000000','{"messages": [{"role": "user", "content": "faster, please"}]}','{"content": "class ModelNew: ..."}',100,50,0.25,2.0);
CREATE TABLE attempts (
	id INTEGER NOT NULL, 
	run VARCHAR(32) NOT NULL, 
	task INTEGER NOT NULL, 
	round INTEGER NOT NULL, 
	confirms BOOLEAN NOT NULL, 
	candidate_sha256 VARCHAR(64) NOT NULL, 
	candidate_source TEXT NOT NULL, 
	candidate TEXT NOT NULL, 
	advice TEXT, 
	PRIMARY KEY (id), 
	FOREIGN KEY(run) REFERENCES runs (id), 
	FOREIGN KEY(task) REFERENCES tasks ("key")
);
INSERT INTO attempts VALUES(1,'1b3ccbfc3d0b48b28036ed6bbb3fa3d7',1,1,0,'616becb6273dd0397dbabf3200dcafc4db6897f4fde031e0fd8003c12d2e7298',replace('# kernel 1001\nclass ModelNew: ...\n','\n',char(10)),'{"source": "# kernel 1001\nclass ModelNew: ...\n", "language": "cpp", "author": "builtin", "parents": [], "advice": "", "schedule": {}}',NULL);
INSERT INTO attempts VALUES(2,'1b3ccbfc3d0b48b28036ed6bbb3fa3d7',1,2,0,'4f8f6b8067cab663b11792ff90fca4b44ce420f84ddcfb2d21d27f9de7234052',replace('# kernel 1002\nclass ModelNew: ...\n','\n',char(10)),'{"source": "# kernel 1002\nclass ModelNew: ...\n", "language": "cpp", "author": "builtin", "parents": [], "advice": "", "schedule": {}}','{"bottleneck": "memory traffic", "method": "fuse the epilogue", "plan": "keep the row in registers and write it once", "evidence": {"dram_bytes": 4200000.0}, "predicted_gain": 1.4, "schedule": {}, "about": ""}');
CREATE TABLE evaluations (
	attempt INTEGER NOT NULL, 
	verdict VARCHAR(32) NOT NULL, 
	reason TEXT NOT NULL, 
	evaluation TEXT NOT NULL, 
	speedup_eager_median DOUBLE, 
	speedup_eager_low DOUBLE, 
	speedup_eager_high DOUBLE, 
	speedup_compile_median DOUBLE, 
	speedup_compile_low DOUBLE, 
	speedup_compile_high DOUBLE, 
	speedup_fastest_median DOUBLE, 
	speedup_fastest_low DOUBLE, 
	speedup_fastest_high DOUBLE, 
	own_kernel_share DOUBLE, 
	candidate_us DOUBLE, 
	seconds DOUBLE NOT NULL, 
	PRIMARY KEY (attempt), 
	FOREIGN KEY(attempt) REFERENCES attempts (id)
);
INSERT INTO evaluations VALUES(1,'wrong_output','error 3.4 budgets','{"schema": 1, "task": "builtin:level1/softmax", "candidate": "616becb6273dd0397dbabf3200dcafc4db6897f4fde031e0fd8003c12d2e7298", "target": {"device": "cpu", "languages": ["cpp"], "ceilings": {"copy_bytes_s": 21000000000.0, "cached_copy_bytes_s": 84000000000.0, "fp32_flops_s": 330000000000.0}, "fingerprint": {"chip": "Testium 9000", "threads": 2, "memory_bytes": 17179869184, "last_level_cache_bytes": 33554432, "system": "Linux 6.1", "python": "3.11.7", "torch": "2.9.0", "compiler": "g++ 12.2.0"}}, "verdict": "wrong_output", "reason": "error 3.4 budgets", "correctness": {"inputs_tried": 12, "error": 0.1, "reference_error": 0.1, "worst_input": "normal"}, "timing": null, "speedup": null, "own_kernel_share": null, "stages": {"build_s": 0.5, "verify_s": 1.0, "time_s": 2.0, "kernel_s": 0.0, "total_s": 3.5}, "environment": {"sandbox": [{"name": "namespaces", "on": true, "why": "hides the network and other processes"}, {"name": "landlock", "on": false, "why": "this kernel lacks it"}], "caches": "cold", "arrivals_per_s": null}}',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,3.5);
INSERT INTO evaluations VALUES(2,'correct','','{"schema": 1, "task": "builtin:level1/softmax", "candidate": "4f8f6b8067cab663b11792ff90fca4b44ce420f84ddcfb2d21d27f9de7234052", "target": {"device": "cpu", "languages": ["cpp"], "ceilings": {"copy_bytes_s": 21000000000.0, "cached_copy_bytes_s": 84000000000.0, "fp32_flops_s": 330000000000.0}, "fingerprint": {"chip": "Testium 9000", "threads": 2, "memory_bytes": 17179869184, "last_level_cache_bytes": 33554432, "system": "Linux 6.1", "python": "3.11.7", "torch": "2.9.0", "compiler": "g++ 12.2.0"}}, "verdict": "correct", "reason": "", "correctness": {"inputs_tried": 12, "error": 0.1, "reference_error": 0.1, "worst_input": "normal"}, "timing": {"candidate_us": {"median": 50.0, "low": 49.0, "high": 51.0}, "eager_us": {"median": 100.0, "low": 98.0, "high": 102.0}, "compile_us": null, "max_autotune_us": null, "cuda_graphs_us": null, "calls_per_block": 10, "rounds": 20, "processes": 1, "disturbed": 0, "compile_s": {}, "failed_baselines": {}, "device_us": null, "clocks": null}, "speedup": {"eager": {"median": 2.0, "low": 1.96, "high": 2.04}, "compile": {"median": 1.5, "low": 1.47, "high": 1.53}, "max_autotune": null, "cuda_graphs": null, "fastest": {"median": 1.5, "low": 1.47, "high": 1.53}}, "own_kernel_share": 0.97, "stages": {"build_s": 0.5, "verify_s": 1.0, "time_s": 2.0, "kernel_s": 0.0, "total_s": 3.5}, "environment": {"sandbox": [{"name": "namespaces", "on": true, "why": "hides the network and other processes"}, {"name": "landlock", "on": false, "why": "this kernel lacks it"}], "caches": "cold", "arrivals_per_s": null}}',2.0,1.9599999999999999644,2.0400000000000000355,1.5,1.4699999999999999733,1.5300000000000000266,1.5,1.4699999999999999733,1.5300000000000000266,0.96999999999999997335,50.0,3.5);
CREATE TABLE profiles (
	attempt INTEGER NOT NULL, 
	profile TEXT NOT NULL, 
	PRIMARY KEY (attempt), 
	FOREIGN KEY(attempt) REFERENCES attempts (id)
);
INSERT INTO profiles VALUES(2,'{"metrics": [{"name": "dram_bytes", "value": 4200000.0, "unit": "bytes", "provenance": "perf"}], "bottleneck": "memory", "speed_of_light": 0.6}');
CREATE INDEX ix_llm_calls_request_sha256 ON llm_calls (request_sha256);
CREATE INDEX llm_calls_of_task ON llm_calls (run, task);
CREATE INDEX attempts_of_task ON attempts (task, id);
CREATE INDEX ix_attempts_candidate_sha256 ON attempts (candidate_sha256);
CREATE INDEX ix_evaluations_verdict ON evaluations (verdict);
COMMIT;
