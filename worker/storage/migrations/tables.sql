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
CREATE INDEX webhooks_created ON webhooks (created_ms, id);
CREATE INDEX webhooks_due ON webhooks (state, next_at_ms);
INSERT INTO alembic_version (version_num) VALUES ('0012');
