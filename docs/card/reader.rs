//! Compares an engine's scores with a card, as reader.py does: rustc -O reader.rs && ./reader CARD SCORES [PRECISION]
use std::{collections::HashSet, env, fs, process::exit}; type Rows = Vec<Vec<f64>>; type Found<T> = Result<T, String>;
fn need(is_met: bool, found: impl Into<String>) -> Found<()> { if is_met { Ok(()) } else { Err(found.into()) } }

enum Json { Null, Word, Num(f64), Text(String), List(Vec<Json>), Object(Vec<(String, Json)>) }
impl Json {
    fn list(&self) -> Found<&[Json]> { if let Json::List(all) = self { Ok(all) } else { Err("a list is missing".into()) } }
    fn get(&self, name: &str) -> Option<&Json> { if let Json::Object(all) = self { all.iter().find(|one| one.0 == name && !matches!(one.1, Json::Null)).map(|one| &one.1) } else { None } }
    fn at(&self, name: &str) -> Found<&Json> { self.get(name).ok_or(format!("{name} is missing")) }
    fn text(&self) -> Found<String> { if let Json::Text(text) = self { Ok(text.clone()) } else { Err("a text is missing".into()) } }
    fn number(&self) -> Found<f64> { if let Json::Num(value) = self { Ok(*value) } else { Err("a number is missing".into()) } }
    fn row(&self) -> Found<Vec<f64>> { self.list()?.iter().map(Json::number).collect() } }

struct Reader<'a> { text: &'a str, at: usize, depth: usize }
impl Reader<'_> {
    fn peek(&mut self) -> Found<u8> {
        self.at += self.text[self.at..].bytes().take_while(|one| b" \t\r\n".contains(one)).count();
        self.text.as_bytes().get(self.at).copied().ok_or("not JSON: it ends too early".into()) }
    fn take(&mut self, sign: u8) -> Found<()> { let found = self.peek()?; self.at += 1; need(found == sign, format!("not JSON: {} was expected", sign as char)) }
    fn many<T>(&mut self, end: u8, item: impl Fn(&mut Self) -> Found<T>) -> Found<Vec<T>> {
        let mut found = vec![]; (self.at, self.depth) = (self.at + 1, self.depth + if self.depth < 900 { 1 } else { return Err("nested too deeply".into()) });
        while self.peek()? != end { if !found.is_empty() { self.take(b',')? } found.push(item(self)?) }
        Ok({ (self.at, self.depth) = (self.at + 1, self.depth - 1); found }) }
    fn text(&mut self) -> Found<String> {
        self.take(b'"')?; let (mut units, mut pair, bad) = (vec![], [0; 2], "not JSON: a text has no end, or a sign that it can't have");
        loop {
            let (rest, sign) = (&self.text[self.at..], self.text[self.at..].chars().next().filter(|sign| *sign >= ' ').ok_or(bad)?);
            let escape = if sign == '\\' { *rest.as_bytes().get(1).ok_or(bad)? } else { 0 }; self.at += match escape { 0 => sign.len_utf8(), b'u' => 6, _ => 2 }; if sign == '"' { return Ok(String::from_utf16_lossy(&units)) } if escape == 0 { units.extend_from_slice(sign.encode_utf16(&mut pair)); continue }
            let hex = rest.get(2..6).filter(|hex| escape == b'u' && !hex.starts_with('+')).and_then(|hex| u16::from_str_radix(hex, 16).ok());
            units.push(hex.or_else(|| b"\"\\/bfnrt".iter().position(|one| *one == escape).map(|at| b"\"\\/\x08\x0c\n\r\t"[at].into())).ok_or(bad)?);
        } }
    fn word(&mut self) -> Found<Json> {
        let word = self.text[self.at..].split(|one| ",]} \t\r\n".contains(one)).next().unwrap_or("");
        let (digits, is_digit) = (word.strip_prefix('-').unwrap_or(word).as_bytes(), |one: Option<&u8>| one.is_some_and(u8::is_ascii_digit));
        let is_plain = is_digit(digits.first()) && !(digits[0] == b'0' && is_digit(digits.get(1))) && (0..digits.len()).all(|at| digits[at] != b'.' || is_digit(digits.get(at + 1)));
        self.at += word.len(); if matches!(word, "null" | "true" | "false") { return Ok(if word == "null" { Json::Null } else { Json::Word }) }
        word.parse().ok().filter(|value: &f64| is_plain && value.is_finite()).map(Json::Num).ok_or("not JSON, or a number that is not finite".into()) }
    fn object(&mut self) -> Found<Json> {
        let (found, mut keys) = (self.many(b'}', |own| { let key = own.text()?; own.take(b':')?; Ok((key, own.value()?)) })?, HashSet::new());
        need(found.iter().all(|one| keys.insert(&one.0)), "a key is there twice").map(|_| Json::Object(found)) }
    fn value(&mut self) -> Found<Json> { match self.peek()? { b'"' => Ok(Json::Text(self.text()?)), b'[' => Ok(Json::List(self.many(b']', Self::value)?)), b'{' => self.object(), _ => self.word() } } }

fn softmax(row: &[f64]) -> Vec<f64> { let top = row.iter().fold(f64::MIN, |one, other| one.max(*other)); let sum: f64 = row.iter().map(|value| (value - top).exp()).sum(); row.iter().map(|value| (value - top).exp() / sum).collect() }
fn sigmoid(row: &[f64]) -> Vec<f64> { row.iter().map(|value| 1.0 / (1.0 + (-value).exp())).collect() }
const FUNCTIONS: [(&str, fn(&[f64]) -> Vec<f64>); 5] = [("none", <[f64]>::to_vec), ("softmax", softmax), ("sigmoid", sigmoid), ("softmax of softmax", |row| softmax(&softmax(row))), ("sigmoid of sigmoid", |row| sigmoid(&sigmoid(row)))];
fn gap(rows: &Rows, to: usize, given: &Rows, at: usize) -> f64 { rows.iter().zip(given).fold(0.0, |most, (row, one)| (one[at] - row[to]).abs().max(most)) }
fn off_by(rows: &Rows, order: &[usize], given: &Rows) -> f64 { order.iter().enumerate().fold(0.0, |most, (at, to)| gap(rows, *to, given, at).max(most)) }
/// Sums the squared differences; with `centered`, after each class's mean difference is taken off.
fn squared_error(rows: &Rows, others: &Rows, centered: bool) -> f64 { (0..rows[0].len()).map(|to| {
    let gaps: Vec<f64> = rows.iter().zip(others).map(|(row, other)| row[to] - other[to]).collect();
    let mean = if centered { gaps.iter().sum::<f64>() / gaps.len() as f64 } else { 0.0 };
    gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() }).sum() }

// How many tolerances apart scores have to lie so that rounding can't be what makes them differ; and how many times
// smaller the squared error has to be when the model in half precision is what is compared with: half of the error,
// squared. Rounding that happens elsewhere leaves more than half, and so do other weights.
const FAR: f64 = 10.0; const CLOSER: f64 = 4.0;

// What gives all the scores with a head of the card: a function on its logits, and an order of the classes.
fn explain(head: &str, logits: &Rows, given: &Rows, limit: f64) -> Vec<String> {
    FUNCTIONS.iter().filter_map(|(name, apply)| {
        let (rows, plain): (Rows, Vec<usize>) = (logits.iter().map(|row| apply(row)).collect(), (0..given[0].len()).collect());
        if off_by(&rows, &plain, given) <= limit { return Some(format!("{head}, then {name}")) }
        let order: Vec<usize> = plain.iter().map(|at| plain.iter().copied().min_by(|a, b| gap(&rows, *a, given, *at).total_cmp(&gap(&rows, *b, given, *at))).unwrap()).collect();
        (plain.iter().all(|to| order.contains(to)) && off_by(&rows, &order, given) <= limit).then(|| format!("{head}, then {name}, classes in the order {order:?}"))
    }).collect() }

// Gives the first word and a sentence, or what is wrong with files that can't be used.
fn compare(card: &Json, file: &Json, precision: &str) -> Found<(&'static str, String)> {
    need(card.at("format")?.text()? == "headscope-card" && card.at("version")?.number()? == 1.0, "not a card of version 1")?;
    let (inputs, width, kind) = (card.at("inputs")?.list()?, card.at("labels")?.list()?.len(), if file.get("logits").is_some() { "logits" } else { "scores" });
    need(file.list().is_ok() || file.get("scores").is_some() != file.get("logits").is_some(), "either scores or logits were expected")?;
    let names = |json: &Json| -> Found<Vec<String>> { json.at("labels")?.list()?.iter().map(Json::text).collect() };
    need(file.get("labels").is_none() || names(file)? == names(card)?, "other labels than the card's, or in another order")?;
    let numbers = |what: &str, all: &Json| -> Found<Rows> {
        let found: Rows = all.list()?.iter().map(|one| one.number().map(|value| vec![value]).or_else(|_| one.row())).collect::<Found<_>>()?;
        let fit = found.len() == inputs.len() && width > 0 && !found.is_empty() && found.iter().all(|row| row.len() == width); need(fit, format!("{what}: {} rows of {width} numbers were expected", inputs.len())).map(|_| found) };
    let (rows, all) = (numbers(kind, file.get(kind).unwrap_or(file))?, numbers("the card", card.at(kind)?)?);
    let limits: Vec<(String, f64)> = card.at("tolerances")?.list()?.iter().filter_map(|item| Some((item.get("precision")?.text().ok()?, item.get(kind)?.number().ok()?))).collect();
    let limit = limits.iter().find(|one| one.0 == precision).ok_or(format!("{kind} were not measured in {precision}"))?.1;
    let (plain, ids): (Vec<usize>, Option<Rows>) = ((0..width).collect(), file.get("input_ids").map(|all| all.list()?.iter().map(Json::row).collect()).transpose()?);
    need(ids.as_ref().is_none_or(|all| all.len() == rows.len() && all.iter().flatten().all(|id| id.fract() == 0.0)), "input_ids: lists of IDs were expected")?;
    let (mut places, mut others, is_same) = (vec![], vec![], off_by(&all, &plain, &rows) <= limit);
    for (at, item) in inputs.iter().enumerate() {
        let (padded, mask) = (item.at("input_ids")?.row()?, item.at("attention_mask")?.row()?); let tokens: Vec<f64> = padded.iter().zip(mask).filter(|one| one.1 != 0.0).map(|one| *one.0).collect();
        if ids.as_ref().is_none_or(|all| all[at] == tokens || all[at] == padded) { places.push(at) } else { others.push(at) } }

    // The same scores for other tokens are the same. Other scores are compared where the tokens are the same.
    if is_same { places = (0..rows.len()).collect() }
    let tokenizer = if others.is_empty() { String::new() } else { format!("the tokenizer differs on inputs {others:?}; ") }; if places.is_empty() { return Ok(("FAIL", format!("{tokenizer}the head was not compared"))) }
    let only = |rows: Rows| -> Rows { places.iter().map(|at| rows[*at].clone()).collect() };
    let (given, expected, is_plain) = (only(rows), only(all), kind == "logits" || card.at("activation")?.text()? == "none"); let off = off_by(&expected, &plain, &given);
    // The tolerance in half precision is four times the rounding already.
    let margin = limit * if precision == "float32" { FAR } else { 2.0 }; if off <= limit {
        // At the ends of a function, which are whole numbers, other logits give the same scores.
        let telling: Vec<&Vec<f64>> = expected.iter().filter(|row| is_plain || row.iter().any(|value| (value - value.round()).abs() > margin)).collect();
        let span = |to: usize| telling.iter().flat_map(|row| telling.iter().map(move |other| row[to] - other[to])).fold(0.0, f64::max);
        if is_same && plain.iter().all(|to| span(*to) < margin) { return Ok(("NOT DETERMINED", format!("{tokenizer}the expected {kind} hardly differ, so equal ones show nothing"))) }
        let (single, function) = (limits.iter().find(|one| one.0 == "float32").map_or(0.0, |one| one.1), if kind == "logits" { "none".into() } else { card.at("activation")?.text()? });
        for run in card.at("runs")?.list()?.iter().filter(|run| off > single && run.at("name").and_then(Json::text).is_ok_and(|name| name == precision)) {
            let apply = FUNCTIONS.iter().find(|one| one.0 == function).ok_or("the activation is unknown")?.1; let half_precision: Rows = only(numbers("a run", run.at("logits")?)?).iter().map(|row| apply(row)).collect();
            if [false, true].iter().any(|by| CLOSER * squared_error(&half_precision, &given, *by) > squared_error(&expected, &given, *by)) { return Ok(("NOT DETERMINED", format!("{tokenizer}off by {off:.2e}: rounding of {precision}, or slightly other weights"))) } }
        return Ok((if is_same { "PASS" } else { "FAIL" }, format!("{tokenizer}the same {kind} within {precision} (off by {off:.2e})"))) }

    let mut heads = vec![("as it is".to_string(), only(numbers("the card", card.at("logits")?)?))]; for item in card.at("alternatives")?.list()? { heads.push((item.at("name")?.text()?, only(numbers("an alternative", item.at("logits")?)?))) }
    let explanations = |most: f64| -> Vec<String> { heads.iter().flat_map(|(name, logits)| explain(name, logits, &given, most)).collect() };
    // In half precision, where rounding may hide the cause, all other causes have to be far away.
    let (found, near) = (explanations(limit), explanations(if precision == "float32" { limit } else { FAR * limit }));
    let cause = if found.is_empty() { "cause not in the card" } else if found.len() == 1 && near == found { &found[0] } else { "several causes fit" };
    let within = limits.iter().find(|one| off <= one.1).map_or(String::new(), |one| format!("; within the rounding of {}", one.0));
    Ok(("FAIL", format!("{tokenizer}other {kind}, off by {off:.2e}: {cause}{within}"))) }

fn read(name: Option<&String>) -> Found<Json> {
    let text = String::from_utf8(fs::read(name.ok_or("two files are needed")?).map_err(|err| err.to_string())?).map_err(|_| "not UTF-8 text")?;
    let mut own = Reader { text: text.strip_prefix('\u{feff}').unwrap_or(&text), at: 0, depth: 0 };
    let found = own.value()?; need(own.peek().is_err(), "not JSON: more follows").map(|_| found) }

fn main() {
    let names: Vec<String> = env::args().collect(); let found = read(names.get(1)).and_then(|card| compare(&card, &read(names.get(2))?, names.get(3).map_or("float32", String::as_str)));
    let (word, sentence) = found.unwrap_or_else(|err| ("UNUSABLE", err)); println!("{word}: {sentence}"); exit(match word { "PASS" => 0, "FAIL" => 1, _ => 3 }) }
