CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE assets (
    id TEXT NOT NULL,
    owner TEXT NOT NULL,
    hash TEXT NOT NULL,
    size_bytes BIGINT NOT NULL,
    content_type TEXT NOT NULL,
    file_path TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    used_ms BIGINT NOT NULL,
    PRIMARY KEY (id)
);
CREATE TABLE facts (
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (name)
);
CREATE TABLE jobs (
    id TEXT NOT NULL,
    number INTEGER NOT NULL,
    body_hash TEXT NOT NULL,
    request TEXT NOT NULL,
    prompt TEXT NOT NULL,
    credentials TEXT,
    state TEXT NOT NULL,
    stage TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    message TEXT NOT NULL,
    outputs TEXT NOT NULL,
    engine_response TEXT NOT NULL,
    failure TEXT,
    times TEXT NOT NULL,
    finished_ms INTEGER, owner TEXT, asked_id TEXT DEFAULT '' NOT NULL, tuning TEXT DEFAULT '{}' NOT NULL, queued_ms BIGINT DEFAULT '0' NOT NULL, metadata TEXT DEFAULT '{}' NOT NULL,
    PRIMARY KEY (id),
    UNIQUE (number)
);
CREATE TABLE queue (
    position INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    job_id TEXT NOT NULL,
    rank INTEGER NOT NULL,
    turn BIGINT NOT NULL,
    owner TEXT NOT NULL,
    model TEXT NOT NULL,
    asked_id TEXT NOT NULL,
    body BLOB,
    num_bytes BIGINT DEFAULT '0' NOT NULL,
    number BIGINT,
    stored_ms BIGINT,
    queued_ms BIGINT NOT NULL,
    num_deliveries INTEGER DEFAULT '0' NOT NULL,
    claim BIGINT DEFAULT '0' NOT NULL,
    holder TEXT,
    lease_until_ms BIGINT,
    is_cancelled BOOLEAN DEFAULT 0 NOT NULL,
    settled_ms BIGINT,
    UNIQUE (job_id)
);
CREATE TABLE queue_dead (
    job_id TEXT NOT NULL,
    reason TEXT NOT NULL,
    body BLOB NOT NULL,
    at_ms BIGINT NOT NULL,
    PRIMARY KEY (job_id)
);
CREATE TABLE queue_depths (
    slot INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    model TEXT NOT NULL,
    num BIGINT NOT NULL,
    PRIMARY KEY (slot, rank, model)
);
CREATE TABLE queue_nodes (
    id TEXT NOT NULL,
    packed BLOB NOT NULL,
    at_ms BIGINT NOT NULL,
    PRIMARY KEY (id)
);
CREATE TABLE queue_results (
    job_id TEXT NOT NULL,
    result BLOB NOT NULL,
    at_ms BIGINT NOT NULL,
    PRIMARY KEY (job_id)
);
CREATE TABLE queue_served (
    rank INTEGER NOT NULL,
    slot INTEGER NOT NULL,
    turn BIGINT NOT NULL,
    PRIMARY KEY (rank, slot)
);
CREATE TABLE queue_turns (
    rank INTEGER NOT NULL,
    owner TEXT NOT NULL,
    turn BIGINT NOT NULL,
    PRIMARY KEY (rank, owner)
);
CREATE TABLE queue_workers (
    name TEXT NOT NULL,
    entry BLOB NOT NULL,
    at_ms BIGINT NOT NULL,
    PRIMARY KEY (name)
);
CREATE TABLE webhooks (
    id TEXT NOT NULL,
    job_id TEXT NOT NULL,
    url TEXT NOT NULL,
    body BLOB NOT NULL,
    secret TEXT,
    timeout_seconds FLOAT NOT NULL,
    is_trusted BOOLEAN NOT NULL,
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    next_at_ms INTEGER NOT NULL,
    last_error TEXT NOT NULL, secret_source TEXT DEFAULT 'request' NOT NULL, tried_ms INTEGER,
    PRIMARY KEY (id)
);
CREATE TABLE worker_tokens (
    name TEXT NOT NULL,
    digest TEXT NOT NULL,
    made_ms BIGINT NOT NULL,
    seen_ms BIGINT,
    revoked_ms BIGINT,
    PRIMARY KEY (name),
    UNIQUE (digest)
);
CREATE TABLE workflows (
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    digest TEXT NOT NULL,
    content TEXT,
    created_ms BIGINT NOT NULL,
    PRIMARY KEY (name, version)
);
CREATE INDEX assets_hash ON assets (owner, hash);
CREATE INDEX jobs_by_owner ON jobs (owner, state, queued_ms, number);
CREATE INDEX jobs_by_state ON jobs (state, queued_ms, number);
CREATE INDEX jobs_finished ON jobs (finished_ms);
CREATE INDEX jobs_unfinished ON jobs (number) WHERE finished_ms IS NULL;
CREATE INDEX queue_cancelled ON queue (rank, owner) WHERE holder IS NULL AND is_cancelled;
CREATE INDEX queue_leases ON queue (lease_until_ms) WHERE holder IS NOT NULL;
CREATE INDEX queue_next ON queue (rank, turn, position) WHERE holder IS NULL;
CREATE INDEX queue_of_model ON queue (rank, owner, model, position) WHERE holder IS NULL;
CREATE INDEX queue_of_owner ON queue (rank, owner, turn) WHERE holder IS NULL;
CREATE INDEX queue_oldest ON queue (rank, owner, position) WHERE holder IS NULL;
CREATE INDEX queue_settled ON queue (settled_ms) WHERE settled_ms IS NOT NULL;
CREATE INDEX webhooks_created ON webhooks (created_ms, id);
CREATE INDEX webhooks_due ON webhooks (state, next_at_ms);
CREATE TRIGGER queue_counted_after_delete AFTER delete ON queue BEGIN
  INSERT INTO queue_depths (slot, rank, model, num) VALUES (0, OLD.rank, OLD.model, -1)
  ON CONFLICT (slot, rank, model) DO UPDATE SET num = num + excluded.num;
END;
CREATE TRIGGER queue_counted_after_insert AFTER insert ON queue BEGIN
  INSERT INTO queue_depths (slot, rank, model, num) VALUES (0, NEW.rank, NEW.model, 1)
  ON CONFLICT (slot, rank, model) DO UPDATE SET num = num + excluded.num;
END;
INSERT INTO alembic_version (version_num) VALUES ('0013');
