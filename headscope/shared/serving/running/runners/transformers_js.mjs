// Runs texts through Transformers.js: NODE_PATH=.../node_modules node transformers_js.mjs REQUEST.json ANSWER.json
//
// The checkpoint's folder holds onnx/model.onnx, in float32. Logits come from the library's model class, which chooses
// the inputs that the ONNX file gets; the default scores come from its pipeline, which gets the same tokens.

import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';

// An import would ignore NODE_PATH.
const library = createRequire(import.meta.url)('@huggingface/transformers');

const LONGEST_MESSAGE = 300;

const message = (error) => String(error).replace(/\s+/g, ' ').slice(0, LONGEST_MESSAGE);

const tensor = (rows) => new library.Tensor('int64', BigInt64Array.from(rows.flat(), BigInt), [rows.length, rows[0].length]);

/** The library's inputs for texts: the given tokens, padded to one length, or those of its own tokenizer. */
async function inputsOf(items, padding, padToken, folder) {
    if (items[0].ids === null) {
        const tokenizer = await library.AutoTokenizer.from_pretrained(folder, { local_files_only: true });
        const pairs = items[0].pair === null ? null : items.map((item) => item.pair);
        return tokenizer(items.map((item) => item.text), { text_pair: pairs, padding: true, truncation: true });
    }
    const length = Math.max(...items.map((item) => item.ids.length));
    const padded = (row, filler) => {
        const rest = Array(length - row.length).fill(filler);
        return padding === 'left' ? [...rest, ...row] : [...row, ...rest];
    };
    const inputs = {
        input_ids: tensor(items.map((item) => padded(item.ids, padToken))),
        attention_mask: tensor(items.map((item) => padded(item.ids.map(() => 1), 0))),
    };
    if (items.some((item) => item.types !== null)) {
        inputs.token_type_ids = tensor(items.map((item) => padded(item.types ?? item.ids.map(() => 0), 0)));
    }
    return inputs;
}

/** What the pipeline for texts returns for all labels, in their order. */
async function defaultScores(model, inputs, count) {
    const pipeline = new library.TextClassificationPipeline({
        task: 'text-classification',
        model,
        tokenizer: () => inputs,
    });
    const found = await pipeline(Array(count).fill(''), { top_k: null });
    return found.map((scores) => {
        const row = [];
        for (const { label, score } of scores) row[Number(label.slice('LABEL_'.length))] = score;
        return row;
    });
}

/** The logits of each text; where each token has some, without those of the padding. */
async function logits(model, inputs) {
    const rows = (await model(inputs)).logits.tolist();
    const mask = inputs.attention_mask.tolist();
    return rows.map((row, at) => (Array.isArray(row[0]) ? row.filter((_, token) => Number(mask[at][token])) : row));
}

async function batchAnswer(model, folder, isToken, batch) {
    const scores = [];
    try {
        if (isToken && !batch.raw) throw new Error('the pipeline returns the best label of each token only');
        const parts = batch.padding === null ? batch.items.map((item) => [item]) : [batch.items];
        for (const items of parts) {
            const inputs = await inputsOf(items, batch.padding, model.config.pad_token_id ?? 0, folder);
            scores.push(...(await (batch.raw ? logits(model, inputs) : defaultScores(model, inputs, items.length))));
        }
        if (!scores.flat(2).every(Number.isFinite)) throw new Error('the scores are not finite');
    } catch (error) {
        return { scores: [], raw: batch.raw, error: message(error) };
    }
    return { scores, raw: batch.raw, error: '' };
}

async function answerTo(request) {
    const answer = { version: library.env.version, error: '', batches: [], notes: [] };
    const folder = path.basename(request.folder);
    library.env.allowRemoteModels = false;
    library.env.localModelPath = path.dirname(path.resolve(request.folder));
    const config = JSON.parse(readFileSync(path.join(request.folder, 'config.json'), 'utf-8'));
    const isToken = config.architectures[0].endsWith('ForTokenClassification');
    const classes = isToken ? library.AutoModelForTokenClassification : library.AutoModelForSequenceClassification;
    let model;
    try {
        model = await classes.from_pretrained(folder, { dtype: 'fp32', device: 'cpu', local_files_only: true });
    } catch (error) {
        return { ...answer, error: message(error) };
    }
    model.config.id2label = null; // so that the pipeline names labels by their number
    for (const batch of request.batches) answer.batches.push(await batchAnswer(model, folder, isToken, batch));
    return answer;
}

const [requestFile, answerFile] = process.argv.slice(2);
const request = JSON.parse(readFileSync(requestFile, 'utf-8'));
if (!existsSync(path.join(request.folder, 'onnx', 'model.onnx'))) {
    console.error(`${request.folder} has no onnx/model.onnx.`);
    process.exit(1);
}
writeFileSync(answerFile, JSON.stringify(await answerTo(request)));
